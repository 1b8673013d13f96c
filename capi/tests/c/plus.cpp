// C++ sees the same interface: no warning, callbacks, constants in templates' arguments.
#include <cstdio>
#include <mpi.h>
#include <vector>

static void sum(void *in, void *inout, int *count, MPI_Datatype *) {
    for (int i = 0; i < *count; i++) {
        static_cast<double *>(inout)[i] += static_cast<const double *>(in)[i];
    }
}

template <typename T> MPI_Datatype datatype();
template <> MPI_Datatype datatype<double>() { return MPI_DOUBLE; }

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Op op;
    MPI_Op_create(&sum, 1, &op);
    std::vector<double> mine(3, rank + 1.0), all(3);
    MPI_Allreduce(mine.data(), all.data(), 3, datatype<double>(), op, MPI_COMM_WORLD);
    MPI_Op_free(&op);
    MPI_Request none = MPI_REQUEST_NULL;
    MPI_Status status;
    MPI_Wait(&none, &status);
    MPI_Wait(&none, MPI_STATUS_IGNORE);
    const bool right = all[2] == size * (size + 1) / 2 && op == MPI_OP_NULL;
    if (rank == 0 && right) std::printf("through\n");
    MPI_Finalize();
    return right ? 0 : 1;
}
