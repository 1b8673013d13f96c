/* Types that do not match, which checking finds. */
#include "check.h"

int main(int argc, char **argv) {
    begin(&argc, &argv);
    double d[4] = {1, 2, 3, 4};
    long long l[4];
    int i[4];
    if (rank == 0) {
        OK(MPI_Send(d, 4, MPI_DOUBLE, 1, 7, MPI_COMM_WORLD));
        OK(MPI_Send(i, 4, MPI_INT, 1, 8, MPI_COMM_WORLD));
        OK(MPI_Send(d, 4, MPI_DOUBLE, 1, 9, MPI_COMM_WORLD));
    } else {
        OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
        MPI_Recv(l, 4, MPI_LONG_LONG, 0, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        OK(MPI_Recv(i, 4, MPI_INT, 0, 8, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        OK(MPI_Recv(l, 32, MPI_PACKED, 0, 9, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    }
    return end();
}
