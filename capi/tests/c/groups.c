/* Groups, communicators, topologies, sessions. Four ranks. */
#include "check.h"

int main(int argc, char **argv) {
    begin(&argc, &argv);
    CHECK(size == 4);
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    OK(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
    MPI_Group world, part, other;
    int n, list[] = {3, 1}, back[2], result;
    OK(MPI_Comm_group(MPI_COMM_WORLD, &world));
    OK(MPI_Group_incl(world, 2, list, &part));
    OK(MPI_Group_size(part, &n)); CHECK(n == 2);
    OK(MPI_Group_rank(part, &n)); CHECK(n == (rank == 3 ? 0 : rank == 1 ? 1 : MPI_UNDEFINED));
    int zero_one[] = {0, 1};
    OK(MPI_Group_translate_ranks(part, 2, zero_one, world, back)); CHECK(back[0] == 3 && back[1] == 1);
    OK(MPI_Group_excl(world, 2, list, &other));
    OK(MPI_Group_compare(part, other, &result)); CHECK(result == MPI_UNEQUAL);
    FAILS(MPI_Group_incl(world, 2, (int[]){0, 9}, &part), MPI_ERR_RANK);
    MPI_Comm comm, dup, split, inter, merged, cart;
    OK(MPI_Comm_create(MPI_COMM_WORLD, part, &comm));
    CHECK((comm == MPI_COMM_NULL) == (rank % 2 == 0));
    if (comm != MPI_COMM_NULL) OK(MPI_Comm_free(&comm));
    OK(MPI_Group_free(&part)); OK(MPI_Group_free(&other)); OK(MPI_Group_free(&world));

    MPI_Request request;
    OK(MPI_Comm_idup(MPI_COMM_WORLD, &dup, &request));
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    OK(MPI_Comm_compare(MPI_COMM_WORLD, dup, &result)); CHECK(result == MPI_CONGRUENT);
    char name[MPI_MAX_OBJECT_NAME];
    OK(MPI_Comm_set_name(dup, "second")); OK(MPI_Comm_get_name(dup, name, &n)); CHECK(!strcmp(name, "second"));
    OK(MPI_Comm_get_name(MPI_COMM_WORLD, name, &n)); CHECK(!strcmp(name, "MPI_COMM_WORLD"));
    OK(MPI_Comm_split(dup, rank % 2, -rank, &split));
    OK(MPI_Comm_rank(split, &n)); CHECK(n == (rank < 2));
    OK(MPI_Intercomm_create(split, 0, dup, rank % 2 ? 2 : 3, 9, &inter));
    OK(MPI_Comm_test_inter(inter, &n)); CHECK(n);
    OK(MPI_Comm_remote_size(inter, &n)); CHECK(n == 2);
    int mine = rank, got = 0;
    OK(MPI_Allreduce(&mine, &got, 1, MPI_INT, MPI_SUM, inter)); CHECK(got == (rank % 2 ? 2 : 4));
    int root = rank % 2 ? 0 : rank == 2 ? MPI_ROOT : MPI_PROC_NULL;
    got = rank == 2 ? 55 : 0;
    OK(MPI_Bcast(&got, 1, MPI_INT, root, inter)); CHECK(got == (rank == 0 ? 0 : 55));
    OK(MPI_Intercomm_merge(inter, rank % 2, &merged));
    OK(MPI_Comm_size(merged, &n)); CHECK(n == 4);
    OK(MPI_Comm_free(&merged)); OK(MPI_Comm_free(&inter)); OK(MPI_Comm_free(&split)); OK(MPI_Comm_free(&dup));

    int dims[2] = {0, 0}, periods[2] = {1, 0}, coords[2], from, to;
    OK(MPI_Dims_create(4, 2, dims)); CHECK(dims[0] == 2 && dims[1] == 2);
    OK(MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periods, 0, &cart));
    OK(MPI_Topo_test(cart, &result)); CHECK(result == MPI_CART);
    OK(MPI_Cart_coords(cart, rank, 2, coords)); CHECK(coords[0] == rank / 2 && coords[1] == rank % 2);
    OK(MPI_Cart_shift(cart, 1, 1, &from, &to)); CHECK(to == (coords[1] ? MPI_PROC_NULL : rank + 1));
    int neighbors[4] = {-1, -1, -1, -1};
    OK(MPI_Neighbor_allgather(&rank, 1, MPI_INT, neighbors, 1, MPI_INT, cart));
    CHECK(neighbors[0] == (rank + 2) % 4 && neighbors[3] == (coords[1] ? -1 : rank + 1));
    FAILS(MPI_Cart_rank(MPI_COMM_WORLD, coords, &n), MPI_ERR_TOPOLOGY);
    OK(MPI_Comm_free(&cart));
    int left = (rank + 3) % 4, right = (rank + 1) % 4, weight = 5;
    OK(MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, 1, &left, &weight, 1, &right, &weight, MPI_INFO_NULL, 0, &comm));
    int in, out, weighted;
    OK(MPI_Dist_graph_neighbors_count(comm, &in, &out, &weighted)); CHECK(in == 1 && out == 1 && weighted);
    OK(MPI_Neighbor_alltoall(&rank, 1, MPI_INT, &got, 1, MPI_INT, comm)); CHECK(got == left);
    OK(MPI_Comm_free(&comm));

    MPI_Session session;
    OK(MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_RETURN, &session));
    OK(MPI_Group_from_session_pset(session, "mpi://WORLD", &world));
    OK(MPI_Comm_create_from_group(world, "tag", MPI_INFO_NULL, MPI_ERRORS_RETURN, &comm));
    OK(MPI_Barrier(comm));
    OK(MPI_Comm_free(&comm)); OK(MPI_Group_free(&world));
    FAILS(MPI_Group_from_session_pset(session, "mpi://NOBODY", &world), MPI_ERR_ARG);
    OK(MPI_Session_finalize(&session)); CHECK(session == MPI_SESSION_NULL);
    /* Two groups: those of each that share memory, and nobody. */
    MPI_Comm half, shared;
    int low = rank < size / 2, sum_of = 0, there;
    OK(MPI_Comm_split(MPI_COMM_WORLD, low, rank, &half));
    OK(MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, low ? size / 2 : 0, 9, &inter));
    OK(MPI_Comm_split_type(inter, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &shared));
    OK(MPI_Comm_test_inter(shared, &there));
    CHECK(there);
    OK(MPI_Comm_remote_size(shared, &there));
    OK(MPI_Allreduce(&rank, &sum_of, 1, MPI_INT, MPI_SUM, shared));
    for (int r = 0; r < size; r++) sum_of -= (r < size / 2) != low ? r : 0;
    CHECK(sum_of == 0 && there == (low ? size - size / 2 : size / 2));
    OK(MPI_Comm_free(&shared));
    OK(MPI_Comm_split_type(inter, MPI_UNDEFINED, 0, MPI_INFO_NULL, &shared));
    CHECK(shared == MPI_COMM_NULL);
    OK(MPI_Comm_free(&inter));
    OK(MPI_Comm_free(&half));
    return end();
}
