/* Half of a program in a shared object, half in a program: built twice. */
#include <mpi.h>

int size_of(MPI_Comm comm);

#ifdef OBJECT
int size_of(MPI_Comm comm) {
    int size;
    return MPI_Comm_size(comm, &size) == MPI_SUCCESS ? size : -1;
}
#else
#include "check.h"

int main(int argc, char **argv) {
    begin(&argc, &argv);
    CHECK(size_of(MPI_COMM_WORLD) == size);
    return end();
}
#endif
