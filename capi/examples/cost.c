/* What calls of the C interface take; `cost.rs` runs this beside the same in Rust. Keep both
 * alike. Prints one line for each: name, nanoseconds. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define BATCHES 41

static int rank, size, peer, calls;
static double mine = 1, other;

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Some calls; a batch is timed as a whole, and the median batch counts. */
#define MEASURE(name, calls_each, body)                                                  \
    do {                                                                                 \
        double batches[BATCHES];                                                         \
        for (int i = 0; i < calls; i++) { body; }                                        \
        for (int b = 0; b < BATCHES; b++) {                                              \
            MPI_Barrier(MPI_COMM_WORLD);                                                 \
            double start = MPI_Wtime();                                                  \
            for (int i = 0; i < calls; i++) { body; }                                    \
            batches[b] = (MPI_Wtime() - start) * 1e9 / calls / (calls_each);             \
        }                                                                                \
        qsort(batches, BATCHES, sizeof batches[0], compare);                             \
        if (rank == 0) printf("%s %.2f\n", name, batches[BATCHES / 2]);                  \
    } while (0)

int main(int argc, char **argv) {
    MPI_Request requests[2];
    MPI_Status status;
    calls = argc > 1 ? atoi(argv[1]) : 2000;
    const char *only = argc > 2 ? argv[2] : "";
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    peer = size - 1 - rank;
    if (!*only || *only == 's')
        MEASURE("send+recv", 2, {
            if (rank == 0) {
                MPI_Send(&mine, 1, MPI_DOUBLE, peer, 0, MPI_COMM_WORLD);
                MPI_Recv(&other, 1, MPI_DOUBLE, peer, 0, MPI_COMM_WORLD, &status);
            } else {
                MPI_Recv(&other, 1, MPI_DOUBLE, peer, 0, MPI_COMM_WORLD, &status);
                MPI_Send(&mine, 1, MPI_DOUBLE, peer, 0, MPI_COMM_WORLD);
            }
        });
    if (!*only || *only == 'i')
        MEASURE("irecv+isend+2wait", 4, {
            MPI_Irecv(&other, 1, MPI_DOUBLE, peer, 0, MPI_COMM_WORLD, &requests[0]);
            MPI_Isend(&mine, 1, MPI_DOUBLE, peer, 0, MPI_COMM_WORLD, &requests[1]);
            MPI_Wait(&requests[0], &status);
            MPI_Wait(&requests[1], MPI_STATUS_IGNORE);
        });
    if (!*only || *only == 'a')
        MEASURE("allreduce", 1, {
            MPI_Allreduce(&mine, &other, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        });
    if (!*only || *only == 'b') MEASURE("barrier", 1, { MPI_Barrier(MPI_COMM_WORLD); });
    MPI_Finalize();
    return 0;
}
