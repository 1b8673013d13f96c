/* Groups, topologies, info, attributes, error handlers and sessions: what the other programs
 * leave out. Any number of ranks. */
#include "check.h"

static void graphs(void) {
    /* A ring as a graph. */
    int left = (rank + size - 1) % size, right = (rank + 1) % size, kind, n, degree = 2, weights[2], more[2];
    int index[size], edges[2 * size], got_index[size], got_edges[2 * size], ends[2], place, in, out, weighted;
    MPI_Comm graph, cart, line;
    for (int i = 0; i < size; i++) {
        index[i] = 2 * (i + 1);
        edges[2 * i] = (i + size - 1) % size;
        edges[2 * i + 1] = (i + 1) % size;
    }
    OK(MPI_Graph_create(MPI_COMM_WORLD, size, index, edges, 0, &graph));
    OK(MPI_Topo_test(graph, &kind)); CHECK(kind == MPI_GRAPH);
    OK(MPI_Graphdims_get(graph, &n, &in)); CHECK(n == size && in == 2 * size);
    OK(MPI_Graph_get(graph, size, 2 * size, got_index, got_edges));
    CHECK(!memcmp(index, got_index, sizeof index) && !memcmp(edges, got_edges, sizeof edges));
    OK(MPI_Graph_neighbors_count(graph, rank, &n)); CHECK(n == 2);
    OK(MPI_Graph_neighbors(graph, rank, 2, ends)); CHECK(ends[0] == left && ends[1] == right);
    OK(MPI_Graph_map(MPI_COMM_WORLD, size, index, edges, &place)); CHECK(place >= 0 && place < size);
    FAILS(MPI_Graph_neighbors(graph, size, 2, ends), MPI_ERR_RANK);
    OK(MPI_Comm_free(&graph));
    /* Each rank says what leaves it; the library finds what comes in. */
    int to[2] = {left, right}, costs[2] = {3, 4};
    OK(MPI_Dist_graph_create(MPI_COMM_WORLD, 1, &rank, &degree, to, costs, MPI_INFO_NULL, 0, &graph));
    OK(MPI_Dist_graph_neighbors_count(graph, &in, &out, &weighted)); CHECK(in == 2 && out == 2 && weighted);
    OK(MPI_Dist_graph_neighbors(graph, 2, ends, weights, 2, to, more));
    CHECK(weights[0] + weights[1] == 7 && more[0] + more[1] == 7);
    OK(MPI_Comm_free(&graph));

    int dims[2] = {size, 1}, periods[2] = {1, 0}, keeps[2] = {1, 0}, coords[2], found[2], turns[2];
    OK(MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periods, 0, &cart));
    OK(MPI_Cartdim_get(cart, &n)); CHECK(n == 2);
    OK(MPI_Cart_get(cart, 2, found, turns, coords));
    CHECK(found[0] == size && found[1] == 1 && turns[0] && !turns[1] && coords[0] == rank && !coords[1]);
    OK(MPI_Cart_map(MPI_COMM_WORLD, 2, dims, periods, &place)); CHECK(place >= 0 && place < size);
    OK(MPI_Cart_sub(cart, keeps, &line));
    OK(MPI_Cartdim_get(line, &n)); CHECK(n == 1);
    OK(MPI_Comm_size(line, &n)); CHECK(n == size);
    OK(MPI_Comm_free(&line)); OK(MPI_Comm_free(&cart));
}

static void groups(void) {
    MPI_Group world, own, most, both;
    int n, result;
    OK(MPI_Comm_group(MPI_COMM_WORLD, &world)); OK(MPI_Comm_group(MPI_COMM_SELF, &own));
    CHECK(MPI_Group_fromint(MPI_Group_toint(world)) == world);
    OK(MPI_Group_difference(world, own, &most));
    OK(MPI_Group_size(most, &n)); CHECK(n == size - 1);
    CHECK((most == MPI_GROUP_EMPTY) == (size == 1));
    OK(MPI_Group_intersection(world, own, &both));
    OK(MPI_Group_compare(both, own, &result)); CHECK(result == MPI_IDENT);
    if (most != MPI_GROUP_EMPTY) OK(MPI_Group_free(&most));
    OK(MPI_Group_free(&both)); OK(MPI_Group_free(&own)); OK(MPI_Group_free(&world));
}

static void duplicates(void) {
    MPI_Info info, back;
    MPI_Comm dup;
    MPI_Request request;
    char text[64];
    int flag, n;
    OK(MPI_Info_create(&info));
    CHECK(MPI_Info_fromint(MPI_Info_toint(info)) == info);
    OK(MPI_Info_set(info, "mpi_assert_no_any_tag", "true"));
    OK(MPI_Info_get_valuelen(info, "mpi_assert_no_any_tag", &n, &flag)); CHECK(flag && n == 4);
    OK(MPI_Info_get(info, "mpi_assert_no_any_tag", 3, text, &flag)); CHECK(flag && !strcmp(text, "tru"));
    OK(MPI_Info_get(info, "nothing", 3, text, &flag)); CHECK(!flag);
    for (int pending = 0; pending < 2; pending++) {
        if (pending) {
            OK(MPI_Comm_idup_with_info(MPI_COMM_WORLD, info, &dup, &request));
            OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
        } else OK(MPI_Comm_dup_with_info(MPI_COMM_WORLD, info, &dup));
        OK(MPI_Comm_get_info(dup, &back));
        n = sizeof text;
        OK(MPI_Info_get_string(back, "mpi_assert_no_any_tag", &n, text, &flag));
        CHECK(flag && !strcmp(text, "true"));
        OK(MPI_Info_free(&back));
        OK(MPI_Barrier(dup));
        OK(MPI_Comm_free(&dup));
    }
    OK(MPI_Info_free(&info));
    char *words[] = {"program", NULL};
    OK(MPI_Info_create_env(1, words, &info));
    OK(MPI_Info_free(&info));
    MPI_Comm parent;
    OK(MPI_Comm_get_parent(&parent)); CHECK(parent == MPI_COMM_NULL);
    OK(MPI_Is_thread_main(&flag)); CHECK(flag);
    OK(MPI_Query_thread(&n)); CHECK(n == MPI_THREAD_SINGLE || n > MPI_THREAD_SINGLE);
}

static int freed;

static int forget(MPI_Comm comm, int key, void *value, void *extra) {
    (void)comm; (void)key; (void)value; (void)extra;
    freed++;
    return MPI_SUCCESS;
}

/* Names that are deprecated or were removed. */
static void old(void) {
    int key, flag, value = 5, *found;
    MPI_Comm dup;
    OK(MPI_Keyval_create(MPI_DUP_FN, forget, &key, NULL));
    OK(MPI_Attr_put(MPI_COMM_SELF, key, &value));
    OK(MPI_Attr_get(MPI_COMM_SELF, key, &found, &flag)); CHECK(flag && *found == 5);
    OK(MPI_Comm_dup(MPI_COMM_SELF, &dup));
    OK(MPI_Attr_get(dup, key, &found, &flag)); CHECK(flag && found == &value);
    OK(MPI_Attr_delete(MPI_COMM_SELF, key)); CHECK(freed == 1);
    OK(MPI_Comm_free(&dup)); CHECK(freed == 2);
    OK(MPI_Keyval_free(&key)); CHECK(key == MPI_KEYVAL_INVALID);
    OK(MPI_Win_create_keyval(MPI_WIN_NULL_COPY_FN, MPI_WIN_NULL_DELETE_FN, &key, NULL));
    OK(MPI_Win_free_keyval(&key)); CHECK(key == MPI_KEYVAL_INVALID);
#ifndef NO_REMOVED
    MPI_Errhandler handler;
    OK(MPI_Errhandler_get(MPI_COMM_WORLD, &handler)); CHECK(handler == MPI_ERRORS_RETURN);
    CHECK(MPI_Errhandler_fromint(MPI_Errhandler_toint(handler)) == handler);
    OK(MPI_Errhandler_set(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
#endif
}

static int heard;

static void hear(MPI_Session *session, int *code, ...) {
    (void)session; (void)code;
    heard++;
}

static void sessions(void) {
    MPI_Session session;
    MPI_Errhandler handler, set;
    MPI_Info info;
    MPI_Group world, own, rest;
    MPI_Comm inter;
    static char room[256], name[] = "mpi://WORLD";
    char text[64], *back;
    int n, flag;
    MPI_Count bytes;
    MPI_Request request;
    OK(MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_RETURN, &session));
    CHECK(MPI_Session_fromint(MPI_Session_toint(session)) == session);
    OK(MPI_Session_get_errhandler(session, &set)); CHECK(set == MPI_ERRORS_RETURN);
    OK(MPI_Session_create_errhandler(hear, &handler));
    OK(MPI_Session_set_errhandler(session, handler));
    FAILS(MPI_Session_get_nth_pset(session, MPI_INFO_NULL, 99, &n, text), MPI_ERR_ARG); CHECK(heard == 1);
    OK(MPI_Errhandler_free(&handler));
    OK(MPI_Session_set_errhandler(session, MPI_ERRORS_RETURN));
    OK(MPI_Session_get_info(session, &info));
    OK(MPI_Info_free(&info));
    OK(MPI_Session_get_pset_info(session, name, &info));
    n = sizeof text;
    OK(MPI_Info_get_string(info, "mpi_size", &n, text, &flag)); CHECK(flag && atoi(text) == size);
    OK(MPI_Info_free(&info));
    OK(MPI_Session_attach_buffer_c(session, room, sizeof room));
    OK(MPI_Session_flush_buffer(session));
    OK(MPI_Session_iflush_buffer(session, &request)); OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    OK(MPI_Session_detach_buffer_c(session, &back, &bytes)); CHECK(back == room && bytes == sizeof room);
    OK(MPI_Group_from_session_pset(session, name, &world));
    /* The first rank on one side, all others on the other. */
    if (size > 1) {
        int first = 0;
        MPI_Group remote;
        OK(MPI_Group_incl(world, 1, &first, &own)); OK(MPI_Group_excl(world, 1, &first, &rest));
        OK(MPI_Intercomm_create_from_groups(rank ? rest : own, 0, rank ? own : rest, 0, "between",
                                            MPI_INFO_NULL, MPI_ERRORS_RETURN, &inter));
        OK(MPI_Comm_remote_size(inter, &n)); CHECK(n == (rank ? 1 : size - 1));
        OK(MPI_Comm_remote_group(inter, &remote));
        OK(MPI_Group_compare(remote, rank ? own : rest, &n)); CHECK(n == MPI_IDENT);
        OK(MPI_Group_free(&remote)); OK(MPI_Group_free(&own)); OK(MPI_Group_free(&rest));
        OK(MPI_Comm_free(&inter));
    }
    OK(MPI_Group_free(&world));
    OK(MPI_Session_finalize(&session));
}

int main(int argc, char **argv) {
    begin(&argc, &argv);
    OK(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    graphs();
    groups();
    duplicates();
    old();
    sessions();
    return end();
}
