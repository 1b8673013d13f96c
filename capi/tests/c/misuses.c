/* Misuses of MPI, one a run: `misuses list` prints each with the class of the error that it
 * must end in; `misuses CASE return` compares the class that the call returns, and finalizes;
 * `misuses CASE fatal` leaves the default handler, which ends the job with that class.
 * Two ranks. A case returns the code of the call that is wrong. */
#include "check.h"
#include <limits.h>
#include <stdint.h>

#define W MPI_COMM_WORLD
#define SELF MPI_COMM_SELF
#define IGNORE MPI_STATUS_IGNORE
#define NONE MPI_INFO_NULL

static int x, y, n, flag, many[64];
static char text[1 << 20];
static MPI_Request r;

#include "misuses_requests.h"

/* ---- datatypes ---- */

static int send_an_uncommitted_vector(void) {
    MPI_Datatype type;
    OK(MPI_Type_vector(2, 1, 2, MPI_INT, &type));
    int code = MPI_Isend(many, 1, type, 0, 1, SELF, &r);
    OK(MPI_Type_free(&type));
    return code;
}

static int free_a_type_twice(void) {
    MPI_Datatype type, copy;
    OK(MPI_Type_contiguous(2, MPI_INT, &type));
    copy = type;
    OK(MPI_Type_free(&type));
    return MPI_Type_free(&copy);
}

static int type_freed_under_a_receive(void) {
    MPI_Datatype type, copy;
    OK(MPI_Type_vector(2, 1, 2, MPI_INT, &type));
    OK(MPI_Type_commit(&type));
    copy = type;
    OK(MPI_Irecv(many, 1, type, 0, 1, SELF, &r));
    OK(MPI_Type_free(&type)); /* allowed: the receive keeps it */
    OK(MPI_Send(many + 8, 2, MPI_INT, 0, 1, SELF));
    OK(MPI_Wait(&r, IGNORE));
    return MPI_Send(many, 1, copy, 0, 1, SELF);
}

static int contents_of_a_predefined_type(void) {
    MPI_Aint address;
    MPI_Datatype type;
    return MPI_Type_get_contents(MPI_INT, 1, 1, 1, &n, &address, &type);
}

static int contents_without_room(void) {
    MPI_Datatype type, of;
    MPI_Aint address;
    OK(MPI_Type_vector(2, 1, 2, MPI_INT, &type));
    int code = MPI_Type_get_contents(type, 1, 0, 1, &n, &address, &of);
    OK(MPI_Type_free(&type));
    return code;
}

static int subarray_beyond_its_array(void) {
    MPI_Datatype type;
    int sizes[2] = {4, 4}, part[2] = {3, 2}, from[2] = {2, 0};
    return MPI_Type_create_subarray(2, sizes, part, from, MPI_ORDER_C, MPI_INT, &type);
}

static int darray_of_another_grid(void) {
    MPI_Datatype type;
    int sizes[2] = {4, 4}, how[2] = {MPI_DISTRIBUTE_BLOCK, MPI_DISTRIBUTE_BLOCK};
    int args[2] = {MPI_DISTRIBUTE_DFLT_DARG, MPI_DISTRIBUTE_DFLT_DARG}, grid[2] = {2, 2};
    return MPI_Type_create_darray(6, 0, 2, sizes, how, args, grid, MPI_ORDER_C, MPI_INT, &type);
}

static int extent_beyond_the_address_space(void) {
    MPI_Datatype types[4];
    int made = 1, code = MPI_SUCCESS;
    OK(MPI_Type_contiguous(INT_MAX, MPI_DOUBLE, &types[0]));
    while (made < 4 && code == MPI_SUCCESS)
        if (!(code = MPI_Type_contiguous(INT_MAX, types[made - 1], &types[made]))) made++;
    while (made--) OK(MPI_Type_free(&types[made]));
    return code;
}

static int send_beyond_the_address_space(void) {
    return MPI_Send_c(text, (MPI_Count)1 << 62, MPI_DOUBLE, 0, 1, SELF);
}

static int receive_into_overlapping_blocks(void) {
    MPI_Datatype type;
    int code;
    OK(MPI_Type_vector(4, 2, 1, MPI_INT, &type));
    OK(MPI_Type_commit(&type));
    OK(MPI_Isend(many + 32, 8, MPI_INT, 0, 1, SELF, &r));
    code = MPI_Recv(many, 1, type, 0, 1, SELF, IGNORE);
    OK(MPI_Type_free(&type));
    if (code) OK(MPI_Recv(many, 8, MPI_INT, 0, 1, SELF, IGNORE));
    OK(MPI_Wait(&r, IGNORE));
    return code;
}

static int unpack_more_than_there_is(void) {
    int at = 0;
    return MPI_Unpack(many, 8, &at, many + 8, 3, MPI_INT, SELF);
}

static int attribute_of_another_kind_of_key(void) {
    int key;
    OK(MPI_Type_create_keyval(MPI_TYPE_NULL_COPY_FN, MPI_TYPE_NULL_DELETE_FN, &key, NULL));
    int copy = key, code = MPI_Comm_set_attr(W, key, &x);
    OK(MPI_Type_free_keyval(&copy));
    return code;
}

/* ---- communicators and groups ---- */

static int use_a_freed_communicator(void) {
    MPI_Comm comm, copy;
    OK(MPI_Comm_dup(W, &comm));
    copy = comm;
    OK(MPI_Irecv(&x, 1, MPI_INT, 1 - rank, 1, comm, &r));
    OK(MPI_Send(&y, 1, MPI_INT, 1 - rank, 1, comm));
    OK(MPI_Comm_free(&comm)); /* allowed: the receive keeps it */
    OK(MPI_Wait(&r, IGNORE));
    return MPI_Barrier(copy);
}

static int free_a_communicator_twice(void) {
    MPI_Comm comm, copy;
    OK(MPI_Comm_dup(SELF, &comm));
    copy = comm;
    OK(MPI_Comm_free(&comm));
    return MPI_Comm_free(&copy);
}

static int free_self(void) {
    MPI_Comm comm = SELF;
    return MPI_Comm_free(&comm);
}

static int communicator_of_any_number(void) {
    return MPI_Send(&x, 1, MPI_INT, 0, 1, MPI_Comm_fromint(123456));
}

/* Two groups of one rank each. */
static MPI_Comm between(void) {
    MPI_Comm comm;
    OK(MPI_Intercomm_create(SELF, 0, W, 1 - rank, 5, &comm));
    return comm;
}

static int scan_between_groups(void) {
    MPI_Comm comm = between();
    int code = MPI_Scan(&x, &y, 1, MPI_INT, MPI_SUM, comm);
    OK(MPI_Comm_free(&comm));
    return code;
}

static int grid_between_groups(void) {
    MPI_Comm comm = between(), grid;
    int one = 1, no = 0, code = MPI_Cart_create(comm, 1, &one, &no, 0, &grid);
    OK(MPI_Comm_free(&comm));
    return code;
}

static int rank_beyond_the_other_group(void) {
    MPI_Comm comm = between();
    int code = MPI_Send(&x, 1, MPI_INT, 1, 1, comm);
    OK(MPI_Comm_free(&comm));
    return code;
}

static int both_groups_are_the_same(void) {
    MPI_Comm comm;
    return MPI_Intercomm_create(W, 0, W, 0, 5, &comm);
}

static int leader_that_is_no_rank(void) {
    MPI_Comm comm;
    return MPI_Intercomm_create(SELF, 7, W, 1 - rank, 5, &comm);
}

static int communicator_of_foreign_ranks(void) {
    MPI_Group all;
    MPI_Comm comm;
    OK(MPI_Comm_group(W, &all));
    int code = MPI_Comm_create(SELF, all, &comm);
    OK(MPI_Group_free(&all));
    return code;
}

static int use_a_freed_group(void) {
    MPI_Group group, copy;
    OK(MPI_Comm_group(W, &group));
    copy = group;
    OK(MPI_Group_free(&group));
    return MPI_Group_rank(copy, &n);
}

static int delete_refuses(MPI_Comm comm, int key, void *value, void *extra) {
    (void)comm, (void)key, (void)value, (void)extra;
    return MPI_ERR_INTERN;
}

static int callback_that_refuses_to_delete(void) {
    int key;
    MPI_Comm comm;
    OK(MPI_Comm_dup(SELF, &comm));
    OK(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, delete_refuses, &key, NULL));
    OK(MPI_Comm_set_attr(comm, key, &x));
    return MPI_Comm_delete_attr(comm, key);
}

static int frees_again(MPI_Comm comm, int key, void *value, void *extra) {
    (void)key, (void)extra;
    int *calls = value;
    if ((*calls)++) return MPI_ERR_INTERN;
    return MPI_Comm_free(&comm);
}

static int callback_that_frees_its_communicator(void) {
    int key, calls = 0;
    MPI_Comm comm;
    OK(MPI_Comm_dup(SELF, &comm));
    OK(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, frees_again, &key, NULL));
    OK(MPI_Comm_set_attr(comm, key, &calls));
    return MPI_Comm_free(&comm);
}

/* The same with a type: deleting its attributes keeps it alive. */
static int type_frees_again(MPI_Datatype type, int key, void *value, void *extra) {
    (void)key, (void)extra;
    int *first = value;
    *first = MPI_Type_free(&type);
    return MPI_SUCCESS;
}

static int callback_that_frees_its_type(void) {
    int key, code = -1;
    MPI_Datatype type;
    OK(MPI_Type_contiguous(2, MPI_INT, &type));
    OK(MPI_Type_create_keyval(MPI_TYPE_NULL_COPY_FN, type_frees_again, &key, NULL));
    OK(MPI_Type_set_attr(type, key, &code));
    OK(MPI_Type_free(&type));
    return code;
}

static int deleted_attribute_frees_its_type(void) {
    int key, code = -1;
    MPI_Datatype type;
    OK(MPI_Type_contiguous(2, MPI_INT, &type));
    OK(MPI_Type_create_keyval(MPI_TYPE_NULL_COPY_FN, type_frees_again, &key, NULL));
    OK(MPI_Type_set_attr(type, key, &code));
    /* It frees the type, whose attribute it deletes again, which fails. */
    OK(MPI_Type_delete_attr(type, key));
    return MPI_Type_free(&type);
}

static int finalizes(MPI_Comm comm, int key, void *value, void *extra) {
    (void)comm, (void)key, (void)extra;
    return *(int *)value ? MPI_Finalize() : MPI_SUCCESS;
}

static int finalize_within_finalize(void) {
    int key;
    OK(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, finalizes, &key, NULL));
    OK(MPI_Comm_set_attr(SELF, key, &x));
    x = 1;
    int code = MPI_Finalize();
    x = 0;
    return code;
}

static void handles(MPI_Comm *comm, int *code, ...) { (void)comm, (void)code; }

static int freed_error_handler(void) {
    MPI_Errhandler handler, copy;
    OK(MPI_Comm_create_errhandler(handles, &handler));
    copy = handler;
    OK(MPI_Errhandler_free(&handler));
    return MPI_Comm_set_errhandler(W, copy);
}

/* ---- collectives ---- */

static int root_that_is_no_rank(void) { return MPI_Bcast(&x, 1, MPI_INT, 2, W); }

/* Only the root works in place; its own call would fail with the other rank's. */
static MPI_Comm aside(void) {
    MPI_Comm comm;
    OK(MPI_Comm_dup(W, &comm));
    return comm;
}

static int reduce_in_place_elsewhere(void) {
    MPI_Comm comm = aside();
    return rank ? MPI_Reduce(MPI_IN_PLACE, &x, 1, MPI_INT, MPI_SUM, 0, comm) : MPI_ERR_BUFFER;
}

static int gather_in_place_elsewhere(void) {
    MPI_Comm comm = aside();
    return rank ? MPI_Gather(MPI_IN_PLACE, 1, MPI_INT, many, 1, MPI_INT, 0, comm) : MPI_ERR_BUFFER;
}

static int alltoallw_without_types(void) {
    int ones[2] = {1, 1}, at[2] = {0, 4};
    return MPI_Alltoallw(many, ones, at, NULL, many + 8, ones, at, NULL, W);
}

static void adds(void *in, void *out, int *len, MPI_Datatype *type) {
    (void)type;
    for (int i = 0; i < *len; i++) ((int *)out)[i] += ((int *)in)[i];
}

static int use_a_freed_operator(void) {
    MPI_Op op, copy;
    OK(MPI_Op_create(adds, 1, &op));
    copy = op;
    OK(MPI_Op_free(&op));
    return MPI_Allreduce(&x, &y, 1, MPI_INT, copy, W);
}

static int sum_of_a_structure(void) {
    MPI_Datatype pair, of[2] = {MPI_INT, MPI_FLOAT};
    int ones[2] = {1, 1};
    MPI_Aint at[2] = {0, 4};
    OK(MPI_Type_create_struct(2, ones, at, of, &pair));
    OK(MPI_Type_commit(&pair));
    int code = MPI_Allreduce(many, many + 8, 1, pair, MPI_SUM, W);
    OK(MPI_Type_free(&pair));
    return code;
}

static int operator_of_windows_only(void) {
    return MPI_Allreduce(&x, &y, 1, MPI_INT, MPI_REPLACE, W);
}

static int start_a_collective_twice(void) {
    OK(MPI_Barrier_init(W, NONE, &r));
    OK(MPI_Start(&r));
    int code = MPI_Start(&r);
    OK(MPI_Wait(&r, IGNORE));
    OK(MPI_Request_free(&r));
    return code;
}

/* ---- topologies ---- */

static MPI_Comm line(void) {
    MPI_Comm comm;
    int no = 0;
    OK(MPI_Cart_create(W, 1, &size, &no, 0, &comm));
    return comm;
}

static int coordinate_beyond_an_open_line(void) {
    MPI_Comm comm = line();
    int at = 2, code = MPI_Cart_rank(comm, &at, &n);
    OK(MPI_Comm_free(&comm));
    return code;
}

static int shift_along_no_dimension(void) {
    MPI_Comm comm = line();
    int code = MPI_Cart_shift(comm, 1, 1, &x, &y);
    OK(MPI_Comm_free(&comm));
    return code;
}

static int graph_neighbors_in_a_grid(void) {
    MPI_Comm comm = line();
    int code = MPI_Graph_neighbors(comm, 0, 1, &n);
    OK(MPI_Comm_free(&comm));
    return code;
}

static int edge_to_no_rank(void) {
    MPI_Comm comm;
    int there = 2, one = 1;
    return MPI_Dist_graph_create_adjacent(W, 1, &there, &one, 1, &there, &one, NONE, 0, &comm);
}

/* ---- out of time ---- */

static int duplicate_before_init(void) {
    MPI_Comm comm;
    return MPI_Comm_dup(W, &comm);
}

static int receive_after_finalize(void) {
    OK(MPI_Finalize());
    return MPI_Recv(&x, 1, MPI_INT, 0, 1, W, IGNORE);
}

static int free_after_finalize(void) {
    MPI_Comm comm;
    OK(MPI_Comm_dup(W, &comm));
    OK(MPI_Finalize());
    return MPI_Comm_free(&comm);
}

static int session_used_when_finalized(void) {
    MPI_Session session, copy;
    OK(MPI_Session_init(NONE, MPI_ERRORS_RETURN, &session));
    copy = session;
    OK(MPI_Session_finalize(&session));
    return MPI_Session_finalize(&copy);
}

enum { INSIDE, BEFORE, AFTER };

#define CASE(name, class) {#name, class, #class, INSIDE, name}
static const struct {
    const char *name;
    int class;
    const char *spelled;
    int when;
    int (*misuse)(void);
} cases[] = {
    CASE(wait_for_a_freed_receive, MPI_ERR_REQUEST),
    CASE(free_a_request_twice, MPI_ERR_REQUEST),
    CASE(start_a_freed_request, MPI_ERR_REQUEST),
    CASE(start_all_with_a_null_request, MPI_ERR_REQUEST),
    CASE(one_request_twice_in_waitall, MPI_ERR_IN_STATUS),
    CASE(one_request_twice_in_testsome, MPI_ERR_IN_STATUS),
    CASE(waitany_of_a_negative_number, MPI_ERR_COUNT),
    CASE(cancel_a_null_request, MPI_ERR_REQUEST),
    CASE(cancel_a_collective, MPI_ERR_REQUEST),
    CASE(free_a_collective_request, MPI_ERR_REQUEST),
    CASE(pready_before_start, MPI_ERR_REQUEST),
    CASE(pready_beyond_the_last_partition, MPI_ERR_ARG),
    CASE(pready_twice, MPI_ERR_ARG),
    CASE(parrived_of_a_send, MPI_ERR_REQUEST),
    CASE(complete_a_grequest_twice, MPI_ERR_REQUEST),
    CASE(complete_a_receive_as_grequest, MPI_ERR_REQUEST),
    CASE(receive_a_message_twice, MPI_ERR_REQUEST),
    CASE(elements_of_an_ignored_status, MPI_ERR_ARG),
    CASE(truncated_rendezvous, MPI_ERR_TRUNCATE),
    CASE(truncated_in_sendrecv, MPI_ERR_TRUNCATE),
    CASE(truncated_in_mrecv, MPI_ERR_TRUNCATE),
    CASE(truncated_persistent_in_testall, MPI_ERR_IN_STATUS),
    CASE(broadcast_longer_than_the_buffer, MPI_ERR_TRUNCATE),
    CASE(send_an_uncommitted_vector, MPI_ERR_TYPE),
    CASE(free_a_type_twice, MPI_ERR_TYPE),
    CASE(type_freed_under_a_receive, MPI_ERR_TYPE),
    CASE(contents_of_a_predefined_type, MPI_ERR_TYPE),
    CASE(contents_without_room, MPI_ERR_ARG),
    CASE(subarray_beyond_its_array, MPI_ERR_ARG),
    CASE(darray_of_another_grid, MPI_ERR_ARG),
    CASE(extent_beyond_the_address_space, MPI_ERR_ARG),
    CASE(send_beyond_the_address_space, MPI_ERR_COUNT),
    CASE(receive_into_overlapping_blocks, MPI_ERR_TYPE),
    CASE(unpack_more_than_there_is, MPI_ERR_ARG),
    CASE(attribute_of_another_kind_of_key, MPI_ERR_KEYVAL),
    CASE(use_a_freed_communicator, MPI_ERR_COMM),
    CASE(free_a_communicator_twice, MPI_ERR_COMM),
    CASE(free_self, MPI_ERR_COMM),
    CASE(communicator_of_any_number, MPI_ERR_COMM),
    CASE(scan_between_groups, MPI_ERR_COMM),
    CASE(grid_between_groups, MPI_ERR_COMM),
    CASE(rank_beyond_the_other_group, MPI_ERR_RANK),
    CASE(both_groups_are_the_same, MPI_ERR_ARG),
    CASE(leader_that_is_no_rank, MPI_ERR_RANK),
    CASE(communicator_of_foreign_ranks, MPI_ERR_GROUP),
    CASE(use_a_freed_group, MPI_ERR_GROUP),
    CASE(callback_that_refuses_to_delete, MPI_ERR_INTERN),
    CASE(callback_that_frees_its_communicator, MPI_ERR_COMM),
    CASE(callback_that_frees_its_type, MPI_ERR_TYPE),
    CASE(deleted_attribute_frees_its_type, MPI_ERR_TYPE),
    CASE(finalize_within_finalize, MPI_ERR_OTHER),
    CASE(freed_error_handler, MPI_ERR_ERRHANDLER),
    CASE(root_that_is_no_rank, MPI_ERR_ROOT),
    CASE(reduce_in_place_elsewhere, MPI_ERR_BUFFER),
    CASE(gather_in_place_elsewhere, MPI_ERR_BUFFER),
    CASE(alltoallw_without_types, MPI_ERR_ARG),
    CASE(use_a_freed_operator, MPI_ERR_OP),
    CASE(sum_of_a_structure, MPI_ERR_OP),
    CASE(operator_of_windows_only, MPI_ERR_OP),
    CASE(start_a_collective_twice, MPI_ERR_REQUEST),
    CASE(coordinate_beyond_an_open_line, MPI_ERR_ARG),
    CASE(shift_along_no_dimension, MPI_ERR_ARG),
    CASE(graph_neighbors_in_a_grid, MPI_ERR_TOPOLOGY),
    CASE(edge_to_no_rank, MPI_ERR_RANK),
    {"duplicate_before_init", MPI_ERR_OTHER, "MPI_ERR_OTHER", BEFORE, duplicate_before_init},
    {"receive_after_finalize", MPI_ERR_OTHER, "MPI_ERR_OTHER", AFTER, receive_after_finalize},
    {"free_after_finalize", MPI_ERR_OTHER, "MPI_ERR_OTHER", AFTER, free_after_finalize},
    CASE(session_used_when_finalized, MPI_ERR_SESSION),
};
enum { CASES = sizeof cases / sizeof *cases };

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "", *how = argc > 2 ? argv[2] : "";
    int at = 0;
    if (!strcmp(name, "list")) {
        for (at = 0; at < CASES; at++)
            printf("%s %d %s %d\n", cases[at].name, cases[at].class, cases[at].spelled, cases[at].when);
        return 0;
    }
    while (at < CASES && strcmp(cases[at].name, name)) at++;
    if (at == CASES) return 77;
    /* Nothing but the end of the process follows a call out of its time. */
    if (cases[at].when == BEFORE) return cases[at].misuse() ? 78 : 79;
    begin(&argc, &argv);
    if (!strcmp(how, "return")) {
        OK(MPI_Comm_set_errhandler(W, MPI_ERRORS_RETURN));
        OK(MPI_Comm_set_errhandler(SELF, MPI_ERRORS_RETURN));
    }
    int code = cases[at].misuse();
    if (cases[at].when == AFTER) return 79;
    /* Under the default handler a rank that does nothing wrong waits here. */
    FAILS(code, cases[at].class);
    return end();
}
