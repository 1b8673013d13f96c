/* Handles that are null, freed, of another kind, or numbers out of nowhere. */
#include "check.h"

#define NOWHERE(type) ((type)(uintptr_t)0xdeadbeef12345678)
#define ZERO(type) ((type)(uintptr_t)0)

static int x, y, flag, n, out[8];
static MPI_Comm made;
static MPI_Request request;
static MPI_Status status;

static void communicators(MPI_Comm bad) {
    void *value;
    char name[MPI_MAX_OBJECT_NAME];
    MPI_Group group;
    MPI_Info info;
    MPI_Message message;
    MPI_Errhandler handler;
    FAILS(MPI_Send(&x, 1, MPI_INT, 0, 0, bad), MPI_ERR_COMM);
    FAILS(MPI_Recv(&x, 1, MPI_INT, 0, 0, bad, &status), MPI_ERR_COMM);
    FAILS(MPI_Isend(&x, 1, MPI_INT, 0, 0, bad, &request), MPI_ERR_COMM);
    FAILS(MPI_Irecv(&x, 1, MPI_INT, 0, 0, bad, &request), MPI_ERR_COMM);
    FAILS(MPI_Send_init(&x, 1, MPI_INT, 0, 0, bad, &request), MPI_ERR_COMM);
    FAILS(MPI_Recv_init(&x, 1, MPI_INT, 0, 0, bad, &request), MPI_ERR_COMM);
    FAILS(MPI_Psend_init(&x, 1, 1, MPI_INT, 0, 0, bad, MPI_INFO_NULL, &request), MPI_ERR_COMM);
    FAILS(MPI_Sendrecv(&x, 1, MPI_INT, 0, 0, &y, 1, MPI_INT, 0, 0, bad, &status), MPI_ERR_COMM);
    FAILS(MPI_Probe(0, 0, bad, &status), MPI_ERR_COMM);
    FAILS(MPI_Iprobe(0, 0, bad, &flag, &status), MPI_ERR_COMM);
    FAILS(MPI_Mprobe(0, 0, bad, &message, &status), MPI_ERR_COMM);
    FAILS(MPI_Barrier(bad), MPI_ERR_COMM);
    FAILS(MPI_Bcast(&x, 1, MPI_INT, 0, bad), MPI_ERR_COMM);
    FAILS(MPI_Ibcast(&x, 1, MPI_INT, 0, bad, &request), MPI_ERR_COMM);
    FAILS(MPI_Allreduce(&x, &y, 1, MPI_INT, MPI_SUM, bad), MPI_ERR_COMM);
    FAILS(MPI_Allreduce_init(&x, &y, 1, MPI_INT, MPI_SUM, bad, MPI_INFO_NULL, &request), MPI_ERR_COMM);
    FAILS(MPI_Gather(&x, 1, MPI_INT, out, 1, MPI_INT, 0, bad), MPI_ERR_COMM);
    FAILS(MPI_Alltoall(&x, 1, MPI_INT, out, 1, MPI_INT, bad), MPI_ERR_COMM);
    FAILS(MPI_Neighbor_alltoall(&x, 1, MPI_INT, out, 1, MPI_INT, bad), MPI_ERR_COMM);
    FAILS(MPI_Comm_rank(bad, &n), MPI_ERR_COMM);
    FAILS(MPI_Comm_size(bad, &n), MPI_ERR_COMM);
    FAILS(MPI_Comm_remote_size(bad, &n), MPI_ERR_COMM);
    FAILS(MPI_Comm_test_inter(bad, &flag), MPI_ERR_COMM);
    FAILS(MPI_Comm_compare(bad, MPI_COMM_WORLD, &n), MPI_ERR_COMM);
    FAILS(MPI_Comm_compare(MPI_COMM_WORLD, bad, &n), MPI_ERR_COMM);
    FAILS(MPI_Comm_group(bad, &group), MPI_ERR_COMM);
    FAILS(MPI_Comm_dup(bad, &made), MPI_ERR_COMM);
    FAILS(MPI_Comm_idup(bad, &made, &request), MPI_ERR_COMM);
    FAILS(MPI_Comm_split(bad, 0, 0, &made), MPI_ERR_COMM);
    FAILS(MPI_Comm_split_type(bad, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &made), MPI_ERR_COMM);
    FAILS(MPI_Comm_create(bad, MPI_GROUP_EMPTY, &made), MPI_ERR_COMM);
    FAILS(MPI_Intercomm_create(bad, 0, MPI_COMM_WORLD, 0, 0, &made), MPI_ERR_COMM);
    FAILS(MPI_Intercomm_merge(bad, 0, &made), MPI_ERR_COMM);
    FAILS(MPI_Comm_get_attr(bad, MPI_TAG_UB, &value, &flag), MPI_ERR_COMM);
    FAILS(MPI_Comm_set_name(bad, "x"), MPI_ERR_COMM);
    if (bad != MPI_COMM_NULL) FAILS(MPI_Comm_get_name(bad, name, &n), MPI_ERR_COMM);
    FAILS(MPI_Comm_get_info(bad, &info), MPI_ERR_COMM);
    FAILS(MPI_Comm_set_info(bad, MPI_INFO_NULL), MPI_ERR_COMM);
    FAILS(MPI_Comm_get_errhandler(bad, &handler), MPI_ERR_COMM);
    FAILS(MPI_Comm_set_errhandler(bad, MPI_ERRORS_RETURN), MPI_ERR_COMM);
    FAILS(MPI_Comm_call_errhandler(bad, MPI_ERR_OTHER), MPI_ERR_COMM);
    FAILS(MPI_Topo_test(bad, &n), MPI_ERR_COMM);
    FAILS(MPI_Cart_create(bad, 1, &size, &flag, 0, &made), MPI_ERR_COMM);
    FAILS(MPI_Cartdim_get(bad, &n), MPI_ERR_COMM);
    FAILS(MPI_Pack_size(1, MPI_INT, bad, &n), MPI_ERR_COMM);
    FAILS(MPI_Comm_flush_buffer(bad), MPI_ERR_COMM);
    made = bad;
    FAILS(MPI_Comm_free(&made), MPI_ERR_COMM);
    made = bad;
    FAILS(MPI_Comm_disconnect(&made), MPI_ERR_COMM);
}

static void types(MPI_Datatype bad) {
    MPI_Datatype made;
    MPI_Aint lb, extent;
    int one = 1, zero = 0, ni, na, nd;
    MPI_Aint at = 0;
    FAILS(MPI_Send(&x, 1, bad, 0, 0, MPI_COMM_WORLD), MPI_ERR_TYPE);
    FAILS(MPI_Send(&x, 0, bad, 0, 0, MPI_COMM_WORLD), MPI_ERR_TYPE);
    FAILS(MPI_Irecv(&x, 1, bad, 0, 0, MPI_COMM_WORLD, &request), MPI_ERR_TYPE);
    FAILS(MPI_Bcast(&x, 1, bad, 0, MPI_COMM_WORLD), MPI_ERR_TYPE);
    FAILS(MPI_Allreduce(&x, &y, 1, bad, MPI_SUM, MPI_COMM_WORLD), MPI_ERR_TYPE);
    FAILS(MPI_Reduce_local(&x, &y, 1, bad, MPI_SUM), MPI_ERR_TYPE);
    FAILS(MPI_Type_size(bad, &n), MPI_ERR_TYPE);
    FAILS(MPI_Type_get_extent(bad, &lb, &extent), MPI_ERR_TYPE);
    FAILS(MPI_Type_get_envelope(bad, &ni, &na, &nd, &n), MPI_ERR_TYPE);
    FAILS(MPI_Type_contiguous(2, bad, &made), MPI_ERR_TYPE);
    FAILS(MPI_Type_vector(2, 1, 2, bad, &made), MPI_ERR_TYPE);
    FAILS(MPI_Type_indexed(1, &one, &zero, bad, &made), MPI_ERR_TYPE);
    FAILS(MPI_Type_create_struct(1, &one, &at, &bad, &made), MPI_ERR_TYPE);
    FAILS(MPI_Type_create_resized(bad, 0, 8, &made), MPI_ERR_TYPE);
    FAILS(MPI_Type_create_subarray(1, &one, &one, &zero, MPI_ORDER_C, bad, &made), MPI_ERR_TYPE);
    FAILS(MPI_Type_dup(bad, &made), MPI_ERR_TYPE);
    FAILS(MPI_Type_set_name(bad, "x"), MPI_ERR_TYPE);
    FAILS(MPI_Get_count(&status, bad, &n), MPI_ERR_TYPE);
    FAILS(MPI_Get_elements(&status, bad, &n), MPI_ERR_TYPE);
    FAILS(MPI_Pack_size(1, bad, MPI_COMM_WORLD, &n), MPI_ERR_TYPE);
    made = bad;
    FAILS(MPI_Type_commit(&made), MPI_ERR_TYPE);
    made = bad;
    FAILS(MPI_Type_free(&made), MPI_ERR_TYPE);
}

static void groups(MPI_Group bad) {
    MPI_Group made;
    int zero = 0, ranges[1][3] = {{0, 0, 1}};
    FAILS(MPI_Group_size(bad, &n), MPI_ERR_GROUP);
    FAILS(MPI_Group_rank(bad, &n), MPI_ERR_GROUP);
    FAILS(MPI_Group_compare(bad, MPI_GROUP_EMPTY, &n), MPI_ERR_GROUP);
    FAILS(MPI_Group_union(MPI_GROUP_EMPTY, bad, &made), MPI_ERR_GROUP);
    FAILS(MPI_Group_incl(bad, 1, &zero, &made), MPI_ERR_GROUP);
    FAILS(MPI_Group_range_excl(bad, 1, ranges, &made), MPI_ERR_GROUP);
    FAILS(MPI_Group_translate_ranks(bad, 1, &zero, MPI_GROUP_EMPTY, &n), MPI_ERR_GROUP);
    FAILS(MPI_Comm_create_group(MPI_COMM_SELF, bad, 0, (MPI_Comm *)out), MPI_ERR_GROUP);
    made = bad;
    FAILS(MPI_Group_free(&made), MPI_ERR_GROUP);
}

static void requests(MPI_Request bad, int null) {
    MPI_Request copy = bad;
    if (!null) {
        FAILS(MPI_Wait(&copy, &status), MPI_ERR_REQUEST);
        FAILS(MPI_Test(&copy, &flag, &status), MPI_ERR_REQUEST);
        FAILS(MPI_Waitany(1, &copy, &n, &status), MPI_ERR_REQUEST);
        FAILS(MPI_Testall(1, &copy, &flag, &status), MPI_ERR_REQUEST);
        FAILS(MPI_Waitsome(1, &copy, &n, out, &status), MPI_ERR_REQUEST);
        FAILS(MPI_Request_get_status(bad, &flag, &status), MPI_ERR_REQUEST);
        int code = MPI_Waitall(1, &copy, &status);
        MPI_Error_class(code, &n);
        CHECK(n == MPI_ERR_REQUEST || (n == MPI_ERR_IN_STATUS && status.MPI_ERROR == MPI_ERR_REQUEST));
    }
    FAILS(MPI_Start(&copy), MPI_ERR_REQUEST);
    FAILS(MPI_Startall(1, &copy), MPI_ERR_REQUEST);
    FAILS(MPI_Cancel(&copy), MPI_ERR_REQUEST);
    FAILS(MPI_Request_free(&copy), MPI_ERR_REQUEST);
    FAILS(MPI_Pready(0, copy), MPI_ERR_REQUEST);
    FAILS(MPI_Grequest_complete(copy), MPI_ERR_REQUEST);
}

static void sum(void *in, void *inout, int *len, MPI_Datatype *type) {
    (void)in; (void)inout; (void)len; (void)type;
}

static void others(void) {
    MPI_Op op, freed;
    OK(MPI_Op_create(sum, 1, &op));
    freed = op;
    OK(MPI_Op_free(&op));
    CHECK(op == MPI_OP_NULL);
    MPI_Op ops[] = {MPI_OP_NULL, freed, (MPI_Op)MPI_INT, ZERO(MPI_Op), NOWHERE(MPI_Op)};
    for (int i = 0; i < 5; i++) {
        FAILS(MPI_Allreduce(&x, &y, 1, MPI_INT, ops[i], MPI_COMM_WORLD), MPI_ERR_OP);
        FAILS(MPI_Reduce_local(&x, &y, 1, MPI_INT, ops[i]), MPI_ERR_OP);
        FAILS(MPI_Op_commutative(ops[i], &flag), MPI_ERR_OP);
        op = ops[i];
        FAILS(MPI_Op_free(&op), MPI_ERR_OP);
    }
    op = MPI_SUM;
    FAILS(MPI_Op_free(&op), MPI_ERR_OP);

    MPI_Info info, gone;
    OK(MPI_Info_create(&info));
    gone = info;
    OK(MPI_Info_free(&info));
    MPI_Info infos[] = {MPI_INFO_NULL, gone, (MPI_Info)MPI_INT, ZERO(MPI_Info), NOWHERE(MPI_Info)};
    for (int i = 0; i < 5; i++) {
        FAILS(MPI_Info_set(infos[i], "a", "b"), MPI_ERR_INFO);
        FAILS(MPI_Info_get_nkeys(infos[i], &n), MPI_ERR_INFO);
        FAILS(MPI_Info_dup(infos[i], &info), MPI_ERR_INFO);
        info = infos[i];
        FAILS(MPI_Info_free(&info), MPI_ERR_INFO);
    }

    MPI_Errhandler handlers[] = {MPI_ERRHANDLER_NULL, (MPI_Errhandler)MPI_INT, NOWHERE(MPI_Errhandler)};
    for (int i = 0; i < 3; i++)
        FAILS(MPI_Comm_set_errhandler(MPI_COMM_WORLD, handlers[i]), MPI_ERR_ERRHANDLER);

    MPI_Message messages[] = {MPI_MESSAGE_NULL, (MPI_Message)MPI_INT, NOWHERE(MPI_Message)};
    for (int i = 0; i < 3; i++) {
        MPI_Message message = messages[i];
        FAILS(MPI_Mrecv(&x, 1, MPI_INT, &message, &status), MPI_ERR_REQUEST);
        message = messages[i];
        FAILS(MPI_Imrecv(&x, 1, MPI_INT, &message, &request), MPI_ERR_REQUEST);
    }

    MPI_Session sessions[] = {MPI_SESSION_NULL, (MPI_Session)MPI_INT, NOWHERE(MPI_Session)};
    for (int i = 0; i < 3; i++) {
        MPI_Session session = sessions[i];
        FAILS(MPI_Session_get_num_psets(session, MPI_INFO_NULL, &n), MPI_ERR_SESSION);
        FAILS(MPI_Session_finalize(&session), MPI_ERR_SESSION);
    }

    int key, copy;
    void *value;
    OK(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, MPI_COMM_NULL_DELETE_FN, &key, NULL));
    copy = key;
    OK(MPI_Comm_free_keyval(&key));
    int keys[] = {MPI_KEYVAL_INVALID, copy, 123456789, -1};
    for (int i = 0; i < 4; i++) {
        FAILS(MPI_Comm_set_attr(MPI_COMM_WORLD, keys[i], &x), MPI_ERR_KEYVAL);
        FAILS(MPI_Comm_get_attr(MPI_COMM_WORLD, keys[i], &value, &flag), MPI_ERR_KEYVAL);
        FAILS(MPI_Comm_delete_attr(MPI_COMM_WORLD, keys[i]), MPI_ERR_KEYVAL);
        key = keys[i];
        FAILS(MPI_Comm_free_keyval(&key), MPI_ERR_KEYVAL);
    }
}

int main(int argc, char **argv) {
    begin(&argc, &argv);
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    OK(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));

    MPI_Comm comm, freed;
    OK(MPI_Comm_dup(MPI_COMM_SELF, &comm));
    freed = comm;
    OK(MPI_Comm_free(&comm));
    OK(MPI_Comm_dup(MPI_COMM_SELF, &comm)); /* in its place */
    MPI_Datatype type, dead;
    OK(MPI_Type_contiguous(2, MPI_INT, &type));
    dead = type;
    OK(MPI_Type_free(&type));
    OK(MPI_Type_contiguous(2, MPI_INT, &type));
    MPI_Group group, left;
    OK(MPI_Comm_group(MPI_COMM_WORLD, &group));
    left = group;
    OK(MPI_Group_free(&group));
    MPI_Comm comms[] = {MPI_COMM_NULL, freed, (MPI_Comm)MPI_INT, (MPI_Comm)type,
                        ZERO(MPI_Comm), NOWHERE(MPI_Comm)};
    for (int i = 0; i < 6; i++) communicators(comms[i]);
    MPI_Datatype bad_types[] = {MPI_DATATYPE_NULL, dead, (MPI_Datatype)MPI_COMM_WORLD,
                                (MPI_Datatype)comm, ZERO(MPI_Datatype), NOWHERE(MPI_Datatype)};
    for (int i = 0; i < 6; i++) types(bad_types[i]);
    MPI_Group bad_groups[] = {MPI_GROUP_NULL, left, (MPI_Group)MPI_INT, NOWHERE(MPI_Group)};
    for (int i = 0; i < 4; i++) groups(bad_groups[i]);

    MPI_Request over;
    OK(MPI_Isend(&x, 1, MPI_INT, 0, 0, comm, &request));
    over = request;
    OK(MPI_Recv(&y, 1, MPI_INT, 0, 0, comm, &status));
    OK(MPI_Wait(&request, &status));
    requests(MPI_REQUEST_NULL, 1);
    requests(over, 0);
    requests((MPI_Request)MPI_INT, 0);
    requests(NOWHERE(MPI_Request), 0);
    others();

    /* What is predefined is not freed, and what is not its kind is refused. */
    comm = MPI_COMM_WORLD;
    FAILS(MPI_Comm_free(&comm), MPI_ERR_COMM);
    dead = MPI_INT;
    FAILS(MPI_Type_free(&dead), MPI_ERR_TYPE);
    FAILS(MPI_Intercomm_merge(MPI_COMM_WORLD, 0, &made), MPI_ERR_COMM);
    FAILS(MPI_Comm_remote_size(MPI_COMM_WORLD, &n), MPI_ERR_COMM);
    FAILS(MPI_Cartdim_get(MPI_COMM_WORLD, &n), MPI_ERR_TOPOLOGY);
    FAILS(MPI_Graphdims_get(MPI_COMM_WORLD, &n, &x), MPI_ERR_TOPOLOGY);
    FAILS(MPI_Neighbor_alltoall(&x, 1, MPI_INT, out, 1, MPI_INT, MPI_COMM_WORLD), MPI_ERR_TOPOLOGY);
    return end();
}
