/* Ends as its argument says; rank 0 and the others wait for the last rank in vain. */
#include "check.h"
#include <signal.h>

int main(int argc, char **argv) {
    begin(&argc, &argv);
    CHECK(argc == 2);
    if (rank == size - 1) {
        if (strcmp(argv[1], "abort") == 0) MPI_Abort(MPI_COMM_WORLD, 5);
        if (strcmp(argv[1], "kill") == 0) raise(SIGKILL);
        if (strcmp(argv[1], "exit") == 0) exit(7);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    return end();
}
