/* Collectives, on any number of ranks. */
#include "check.h"

/* 2x2 matrices: does not commute. */
static void product(void *in, void *inout, int *n, MPI_Datatype *type) {
    (void)type;
    long *a = in, *b = inout;
    for (int i = 0; i < *n; i++, a += 4, b += 4) {
        long c[4] = {a[0] * b[0] + a[1] * b[2], a[0] * b[1] + a[1] * b[3],
                     a[2] * b[0] + a[3] * b[2], a[2] * b[1] + a[3] * b[3]};
        memcpy(b, c, sizeof c);
    }
}

static void all_forms(void) {
    int root = size - 1, sum = size * (size - 1) / 2, mine = rank, got, *many = calloc(2 * size, sizeof(int));
    MPI_Request request;
    OK(MPI_Bcast(&mine, 1, MPI_INT, root, MPI_COMM_WORLD)); CHECK(mine == root);
    mine = rank;
    OK(MPI_Reduce(&mine, &got, 1, MPI_INT, MPI_SUM, root, MPI_COMM_WORLD));
    if (rank == root) CHECK(got == sum);
    OK(MPI_Allreduce(&mine, &got, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD)); CHECK(got == root);
    got = rank;
    OK(MPI_Allreduce(MPI_IN_PLACE, &got, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD)); CHECK(got == sum);
    OK(MPI_Iallreduce(&mine, &got, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD, &request));
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE)); CHECK(got == 0 && request == MPI_REQUEST_NULL);
    OK(MPI_Allreduce_init(&mine, &got, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, MPI_INFO_NULL, &request));
    for (int round = 1; round < 4; round++) {
        mine = rank * round;
        OK(MPI_Start(&request));
        OK(MPI_Wait(&request, MPI_STATUS_IGNORE)); CHECK(got == sum * round);
    }
    OK(MPI_Request_free(&request));
    mine = rank;
    OK(MPI_Gather(&mine, 1, MPI_INT, many, 1, MPI_INT, 0, MPI_COMM_WORLD));
    if (rank == 0) for (int i = 0; i < size; i++) CHECK(many[i] == i);
    OK(MPI_Scatter(many, 1, MPI_INT, &got, 1, MPI_INT, 0, MPI_COMM_WORLD)); CHECK(got == rank);
    memset(many, 0, size * sizeof(int));
    OK(MPI_Allgather(&mine, 1, MPI_INT, many, 1, MPI_INT, MPI_COMM_WORLD));
    for (int i = 0; i < size; i++) CHECK(many[i] == i);
    for (int i = 0; i < size; i++) many[i] = 100 * rank + i;
    OK(MPI_Alltoall(MPI_IN_PLACE, 1, MPI_INT, many, 1, MPI_INT, MPI_COMM_WORLD));
    for (int i = 0; i < size; i++) CHECK(many[i] == 100 * i + rank);
    OK(MPI_Scan(&mine, &got, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD)); CHECK(got == rank * (rank + 1) / 2);
    OK(MPI_Exscan(&mine, &got, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
    if (rank) CHECK(got == rank * (rank - 1) / 2);
    for (int i = 0; i < size; i++) many[i] = i;
    OK(MPI_Reduce_scatter_block(many, &got, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD)); CHECK(got == size * rank);
    OK(MPI_Ibarrier(MPI_COMM_WORLD, &request)); OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    struct { double value; int at; } pair = {-rank, rank}, best;
    OK(MPI_Allreduce(&pair, &best, 1, MPI_DOUBLE_INT, MPI_MINLOC, MPI_COMM_WORLD)); CHECK(best.at == root);
    free(many);
}

static void blocks(void) {
    int total = size * (size + 1) / 2, counts[size], at[size], *all = malloc(total * sizeof(int)), mine[size];
    for (int i = 0, place = total; i < size; i++) {
        counts[i] = i + 1;
        at[i] = place -= i + 1;
        mine[i] = 10 * rank;
    }
    OK(MPI_Allgatherv(mine, rank + 1, MPI_INT, all, counts, at, MPI_INT, MPI_COMM_WORLD));
    for (int i = 0; i < size; i++) CHECK(all[at[i]] == 10 * i && all[at[i] + i] == 10 * i);
    OK(MPI_Gatherv(mine, rank + 1, MPI_INT, all, counts, at, MPI_INT, 0, MPI_COMM_WORLD));
    OK(MPI_Scatterv(all, counts, at, MPI_INT, mine, rank + 1, MPI_INT, 0, MPI_COMM_WORLD));
    CHECK(mine[rank] == 10 * rank);
    int to[size], from[size], ones[size], places[size], bytes[size];
    MPI_Datatype types[size];
    for (int i = 0; i < size; i++) {
        to[i] = 100 * rank + i; ones[i] = 1; places[i] = i; bytes[i] = 4 * i; types[i] = MPI_INT;
    }
    OK(MPI_Alltoallv(to, ones, places, MPI_INT, from, ones, places, MPI_INT, MPI_COMM_WORLD));
    for (int i = 0; i < size; i++) CHECK(from[i] == 100 * i + rank);
    memset(from, 0, sizeof from);
    OK(MPI_Alltoallw(to, ones, bytes, types, from, ones, bytes, types, MPI_COMM_WORLD));
    for (int i = 0; i < size; i++) CHECK(from[i] == 100 * i + rank);
    OK(MPI_Alltoallw(MPI_IN_PLACE, ones, bytes, types, to, ones, bytes, types, MPI_COMM_WORLD));
    for (int i = 0; i < size; i++) CHECK(to[i] == 100 * i + rank);
    MPI_Request request;
    OK(MPI_Ialltoallv(to, ones, places, MPI_INT, from, ones, places, MPI_INT, MPI_COMM_WORLD, &request));
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    for (int i = 0; i < size; i++) CHECK(from[i] == 100 * rank + i);
    free(all);
}

static void functions(void) {
    long mine[4] = {1, rank + 1, 0, 1}, got[4], expected[4] = {1, size * (size + 1) / 2, 0, 1};
    MPI_Op op;
    MPI_Datatype matrix;
    int commute;
    OK(MPI_Type_contiguous(4, MPI_LONG, &matrix)); OK(MPI_Type_commit(&matrix));
    OK(MPI_Op_create(product, 0, &op));
    OK(MPI_Op_commutative(op, &commute)); CHECK(!commute);
    OK(MPI_Allreduce(mine, got, 1, matrix, op, MPI_COMM_WORLD));
    CHECK(!memcmp(got, expected, sizeof got));
    long there[4] = {2, 0, 0, 3};
    OK(MPI_Reduce_local(mine, there, 1, matrix, op)); CHECK(there[0] == 2 && there[3] == 3);
    OK(MPI_Op_free(&op)); CHECK(op == MPI_OP_NULL);
    OK(MPI_Type_free(&matrix));
    FAILS(MPI_Allreduce(mine, got, 1, MPI_DOUBLE, MPI_BAND, MPI_COMM_WORLD), MPI_ERR_OP);
}

/* Operators that want an order, to one root and then to another: what suits the one root
 * need not suit the other. */
static void turns(void) {
    for (int n = 1; n <= 1024; n *= 4) {
        double in[1024], out[1024];
        for (int i = 0; i < n; i++) in[i] = rank + i;
        for (int root = 0; root < size; root++) {
            OK(MPI_Reduce(in, out, n, MPI_DOUBLE, MPI_MAX, root, MPI_COMM_WORLD));
            if (rank == root)
                for (int i = 0; i < n; i++) CHECK(out[i] == size - 1 + i);
        }
    }
}

/* Requests of collectives that are complete, as the program was told, may be freed. */
static void freed_when_complete(void) {
    MPI_Request requests[2];
    MPI_Comm made;
    int flag;
    OK(MPI_Ibarrier(MPI_COMM_WORLD, &requests[0]));
    OK(MPI_Comm_idup(MPI_COMM_WORLD, &made, &requests[1]));
    for (int i = 0; i < 2; i++) {
        do OK(MPI_Request_get_status(requests[i], &flag, MPI_STATUS_IGNORE));
        while (!flag);
    }
    for (int i = 0; i < 2; i++) {
        OK(MPI_Request_free(&requests[i]));
        CHECK(requests[i] == MPI_REQUEST_NULL);
    }
    OK(MPI_Barrier(made));
    OK(MPI_Comm_free(&made));
}

int main(int argc, char **argv) {
    begin(&argc, &argv);
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    all_forms();
    blocks();
    functions();
    turns();
    freed_when_complete();
    return end();
}
