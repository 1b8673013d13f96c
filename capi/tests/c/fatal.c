/* Ends by the default handler. */
#include "check.h"

int main(int argc, char **argv) {
    begin(&argc, &argv);
    if (rank == 0) MPI_Send(&rank, 1, MPI_INT, 99, 0, MPI_COMM_WORLD);
    else MPI_Barrier(MPI_COMM_WORLD);
    printf("through\n");
    return 0;
}
