/* Each collective in each of its forms: blocking, pending and persistent, with counts of
 * either size. */
#include "check.h"

enum { MOST = 8 };

static int in[2 * MOST * MOST], out[2 * MOST * MOST], sum, root;
static MPI_Request request;

static void fresh(void) {
    for (int i = 0; i < 2 * MOST * MOST; i++) {
        in[i] = 100 * rank + i;
        out[i] = -1;
    }
}

#define UN(...) __VA_ARGS__
#define PENDING(call) do { OK(call); OK(MPI_Wait(&request, MPI_STATUS_IGNORE)); } while (0)
#define PERSISTENT(call, check)                                                          \
    do {                                                                                 \
        OK(call);                                                                        \
        for (int round = 0; round < 2; round++) {                                        \
            fresh();                                                                     \
            OK(MPI_Start(&request));                                                     \
            OK(MPI_Wait(&request, MPI_STATUS_IGNORE));                                   \
            CHECK(check);                                                                \
        }                                                                                \
        OK(MPI_Request_free(&request));                                                  \
    } while (0)

/* The name after MPI_ and after MPI_I; the arguments, and those with large counts. */
#define FORMS(name, pending, list, large, check)                                         \
    do {                                                                                 \
        fresh(); OK(MPI_##name(UN list)); CHECK(check);                                  \
        fresh(); OK(MPI_##name##_c(UN large)); CHECK(check);                             \
        fresh(); PENDING(MPI_I##pending(UN list, &request)); CHECK(check);               \
        fresh(); PENDING(MPI_I##pending##_c(UN large, &request)); CHECK(check);          \
        PERSISTENT(MPI_##name##_init(UN list, MPI_INFO_NULL, &request), check);          \
        PERSISTENT(MPI_##name##_init_c(UN large, MPI_INFO_NULL, &request), check);       \
    } while (0)

/* Those whose counts are no arrays take the same arguments. */
#define ALIKE(name, pending, list, check) FORMS(name, pending, list, list, check)

/* Two numbers of each rank, one after the other. */
static int all_of_all(void) {
    for (int i = 0; i < size; i++)
        if (out[2 * i] != 100 * i || out[2 * i + 1] != 100 * i + 1) return 0;
    return 1;
}

/* What each rank had for this one. */
static int mine_of_all(int stride) {
    for (int i = 0; i < size; i++)
        if (out[stride * i] != 100 * i + stride * rank) return 0;
    return 1;
}

/* As many as the rank's number and one, packed. */
static int blocks_of_all(void) {
    for (int i = 0, at = 0; i < size; at += ++i)
        if (out[at] != 100 * i || out[at + i] != 100 * i + i) return 0;
    return 1;
}

static void of_all(MPI_Comm w) {
    int sums = 100 * sum;
    FORMS(Bcast, bcast, (in, 2, MPI_INT, root, w), (in, 2, MPI_INT, root, w),
          in[0] == 100 * root && in[1] == 100 * root + 1);
    ALIKE(Gather, gather, (in, 2, MPI_INT, out, 2, MPI_INT, root, w), rank != root || all_of_all());
    ALIKE(Scatter, scatter, (in, 2, MPI_INT, out, 2, MPI_INT, root, w), out[0] == 100 * root + 2 * rank);
    ALIKE(Allgather, allgather, (in, 2, MPI_INT, out, 2, MPI_INT, w), all_of_all());
    ALIKE(Alltoall, alltoall, (in, 2, MPI_INT, out, 2, MPI_INT, w), mine_of_all(2));
    ALIKE(Reduce, reduce, (in, out, 2, MPI_INT, MPI_SUM, root, w),
          rank != root || (out[0] == sums && out[1] == sums + size));
    ALIKE(Allreduce, allreduce, (in, out, 2, MPI_INT, MPI_SUM, w), out[0] == sums && out[1] == sums + size);
    ALIKE(Scan, scan, (in, out, 1, MPI_INT, MPI_SUM, w), out[0] == 50 * rank * (rank + 1));
    ALIKE(Exscan, exscan, (in, out, 1, MPI_INT, MPI_SUM, w), rank == 0 || out[0] == 50 * rank * (rank - 1));
    ALIKE(Reduce_scatter_block, reduce_scatter_block, (in, out, 2, MPI_INT, MPI_SUM, w),
          out[0] == sums + size * 2 * rank);

    /* Blocks that differ. */
    int counts[MOST], at[MOST], ones[MOST], places[MOST], bytes[MOST];
    MPI_Count counts_c[MOST], ones_c[MOST];
    MPI_Aint at_c[MOST], places_c[MOST], bytes_c[MOST];
    MPI_Datatype types[MOST];
    for (int i = 0, place = 0; i < size; place += ++i) {
        counts_c[i] = counts[i] = i + 1;
        at_c[i] = at[i] = place;
        ones_c[i] = ones[i] = 1;
        places_c[i] = places[i] = i;
        bytes_c[i] = bytes[i] = 4 * i;
        types[i] = MPI_INT;
    }
    int more = rank + 1, first = rank * (rank + 1) / 2;
    FORMS(Gatherv, gatherv, (in, more, MPI_INT, out, counts, at, MPI_INT, root, w),
          (in, more, MPI_INT, out, counts_c, at_c, MPI_INT, root, w), rank != root || blocks_of_all());
    FORMS(Allgatherv, allgatherv, (in, more, MPI_INT, out, counts, at, MPI_INT, w),
          (in, more, MPI_INT, out, counts_c, at_c, MPI_INT, w), blocks_of_all());
    FORMS(Scatterv, scatterv, (in, counts, at, MPI_INT, out, more, MPI_INT, root, w),
          (in, counts_c, at_c, MPI_INT, out, more, MPI_INT, root, w),
          out[0] == 100 * root + first && out[rank] == 100 * root + first + rank);
    FORMS(Reduce_scatter, reduce_scatter, (in, out, counts, MPI_INT, MPI_SUM, w),
          (in, out, counts_c, MPI_INT, MPI_SUM, w), out[rank] == sums + size * (first + rank));
    FORMS(Alltoallv, alltoallv, (in, ones, places, MPI_INT, out, ones, places, MPI_INT, w),
          (in, ones_c, places_c, MPI_INT, out, ones_c, places_c, MPI_INT, w), mine_of_all(1));
    FORMS(Alltoallw, alltoallw, (in, ones, bytes, types, out, ones, bytes, types, w),
          (in, ones_c, bytes_c, types, out, ones_c, bytes_c, types, w), mine_of_all(1));

    OK(MPI_Barrier(w));
    PENDING(MPI_Ibarrier(w, &request));
    PERSISTENT(MPI_Barrier_init(w, MPI_INFO_NULL, &request), 1);
}

static void of_neighbors(MPI_Comm ring) {
    int left = (rank + size - 1) % size, right = (rank + 1) % size;
    int twos[] = {2, 2}, at[] = {3, 0};
    MPI_Count twos_c[] = {2, 2};
    MPI_Aint at_c[] = {3, 0}, bytes[] = {12, 0};
    MPI_Datatype types[] = {MPI_INT, MPI_INT};
    ALIKE(Neighbor_allgather, neighbor_allgather, (in, 2, MPI_INT, out, 2, MPI_INT, ring),
          out[0] == 100 * left && out[1] == 100 * left + 1 && out[2] == 100 * right);
    FORMS(Neighbor_allgatherv, neighbor_allgatherv, (in, 2, MPI_INT, out, twos, at, MPI_INT, ring),
          (in, 2, MPI_INT, out, twos_c, at_c, MPI_INT, ring),
          out[3] == 100 * left && out[4] == 100 * left + 1 && out[0] == 100 * right);
    ALIKE(Neighbor_alltoall, neighbor_alltoall, (in, 2, MPI_INT, out, 2, MPI_INT, ring),
          out[0] == 100 * left + 2 && out[2] == 100 * right);
    FORMS(Neighbor_alltoallv, neighbor_alltoallv,
          (in, twos, at, MPI_INT, out, twos, at, MPI_INT, ring),
          (in, twos_c, at_c, MPI_INT, out, twos_c, at_c, MPI_INT, ring),
          out[3] == 100 * left && out[0] == 100 * right + 3);
    FORMS(Neighbor_alltoallw, neighbor_alltoallw,
          (in, twos, bytes, types, out, twos, bytes, types, ring),
          (in, twos_c, bytes, types, out, twos_c, bytes, types, ring),
          out[3] == 100 * left && out[0] == 100 * right + 3);
}

static void add(void *from, void *to, MPI_Count *n, MPI_Datatype *type) {
    CHECK(*type == MPI_INT);
    for (MPI_Count i = 0; i < *n; i++) ((int *)to)[i] += ((int *)from)[i];
}

int main(int argc, char **argv) {
    begin(&argc, &argv);
    CHECK(size <= MOST);
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    root = size / 2;
    sum = size * (size - 1) / 2;
    of_all(MPI_COMM_WORLD);
    MPI_Comm ring;
    int round = 1;
    OK(MPI_Cart_create(MPI_COMM_WORLD, 1, &size, &round, 0, &ring));
    of_neighbors(ring);
    OK(MPI_Comm_free(&ring));
    MPI_Op op;
    int one[] = {1, 2}, other[] = {3, 4}, got[2];
    OK(MPI_Op_create_c(add, 1, &op));
    CHECK(MPI_Op_fromint(MPI_Op_toint(op)) == op);
    OK(MPI_Reduce_local_c(one, other, 2, MPI_INT, op)); CHECK(other[0] == 4 && other[1] == 6);
    OK(MPI_Allreduce(one, got, 2, MPI_INT, op, MPI_COMM_WORLD)); CHECK(got[0] == size && got[1] == 2 * size);
    OK(MPI_Op_free(&op));
    return end();
}
