/* What programs of others rely on, each found by one of them. */
#include "check.h"

static int deleted;

static int count_deleted(MPI_Comm comm, int key, void *value, void *extra) {
    (void)comm, (void)key, (void)value, (void)extra;
    deleted++;
    return MPI_SUCCESS;
}

static void keys(void) {
    int key, same;
    OK(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, count_deleted, &key, NULL));
    same = key;
    OK(MPI_Comm_set_attr(MPI_COMM_SELF, key, NULL));
    OK(MPI_Comm_free_keyval(&key));
    CHECK(key == MPI_KEYVAL_INVALID);
    /* It is not gone before what hangs on it. */
    OK(MPI_Comm_delete_attr(MPI_COMM_SELF, same));
    CHECK(deleted == 1);
    FAILS(MPI_Comm_delete_attr(MPI_COMM_SELF, same), MPI_ERR_KEYVAL);
}

/* MPI_COMM_WORLD's handler hears of what has no object, as long as MPI_COMM_SELF has none. */
static int heard_on;

static void hear(MPI_Comm *comm, int *code, ...) {
    (void)code;
    heard_on = *comm == MPI_COMM_WORLD ? 1 : *comm == MPI_COMM_SELF ? 2 : 3;
}

static void handlers(void) {
    MPI_Errhandler mine;
    int bytes;
    OK(MPI_Comm_create_errhandler(hear, &mine));
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, mine));
    FAILS(MPI_Type_size(MPI_DATATYPE_NULL, &bytes), MPI_ERR_TYPE);
    CHECK(heard_on == 1);
    /* So does MPI_COMM_SELF itself. */
    FAILS(MPI_Send(&bytes, 1, MPI_INT, 5, 0, MPI_COMM_SELF), MPI_ERR_RANK);
    CHECK(heard_on == 2);
    OK(MPI_Comm_set_errhandler(MPI_COMM_SELF, mine));
    FAILS(MPI_Type_size(MPI_DATATYPE_NULL, &bytes), MPI_ERR_TYPE);
    CHECK(heard_on == 2);
    OK(MPI_Errhandler_free(&mine));
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    OK(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
}

/* The handler that is meant for what is made hears when the making fails. */
static int given_heard;

static void hear_of_session(MPI_Session *session, int *code, ...) {
    int class;
    MPI_Error_class(*code, &class);
    CHECK(*session == MPI_SESSION_NULL && class == MPI_ERR_ARG);
    given_heard++;
}

static void hear_of_comm(MPI_Comm *comm, int *code, ...) {
    (void)code;
    CHECK(*comm == MPI_COMM_NULL);
    given_heard++;
}

static void given_handlers(void) {
    MPI_Errhandler of_session, of_comm;
    MPI_Session session;
    MPI_Group group, none;
    MPI_Comm comm;
    MPI_Info info;
    /* Nobody else is to hear of it. */
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL));
    OK(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_ARE_FATAL));
    OK(MPI_Session_create_errhandler(hear_of_session, &of_session));
    OK(MPI_Comm_create_errhandler(hear_of_comm, &of_comm));
    OK(MPI_Info_create(&info));
    OK(MPI_Info_set(info, "thread_level", "no such level"));
    FAILS(MPI_Session_init(info, of_session, &session), MPI_ERR_ARG);
    CHECK(given_heard == 1 && session == MPI_SESSION_NULL);
    FAILS(MPI_Session_init(info, MPI_ERRORS_RETURN, &session), MPI_ERR_ARG);
    OK(MPI_Info_free(&info));
    OK(MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_RETURN, &session));
    OK(MPI_Group_from_session_pset(session, "mpi://SELF", &group));
    FAILS(MPI_Comm_create_from_group(group, NULL, MPI_INFO_NULL, of_comm, &comm), MPI_ERR_ARG);
    CHECK(given_heard == 2 && comm == MPI_COMM_NULL);
    FAILS(MPI_Comm_create_from_group(group, "t", MPI_INFO_NULL, of_comm, NULL), MPI_ERR_ARG);
    FAILS(MPI_Intercomm_create_from_groups(group, 0, MPI_GROUP_NULL, 0, "t", MPI_INFO_NULL,
                                           of_comm, &comm), MPI_ERR_GROUP);
    CHECK(given_heard == 4 && comm == MPI_COMM_NULL);
    OK(MPI_Comm_create_from_group(group, "t", MPI_INFO_NULL, of_comm, &comm));
    CHECK(given_heard == 4);
    OK(MPI_Comm_free(&comm));
    OK(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));

    /* No place for the group is an error before its ranges are. */
    int beyond[1][3] = {{size, 0, 1}}, first = size;
    FAILS(MPI_Group_range_incl(group, 1, beyond, NULL), MPI_ERR_ARG);
    FAILS(MPI_Group_range_excl(group, 1, beyond, NULL), MPI_ERR_ARG);
    none = group;
    FAILS(MPI_Group_incl(group, 1, &first, &none), MPI_ERR_RANK);
    CHECK(none == group);
    OK(MPI_Group_free(&group));
    OK(MPI_Session_finalize(&session));
    OK(MPI_Errhandler_free(&of_session));
    OK(MPI_Errhandler_free(&of_comm));
}

/* Those that wait for all say of each that it went well. */
static void went_well(void) {
    int one = 1, other = 0;
    MPI_Request requests[2];
    MPI_Status statuses[2];
    statuses[0].MPI_ERROR = statuses[1].MPI_ERROR = 77;
    OK(MPI_Irecv(&other, 1, MPI_INT, 0, 1, MPI_COMM_SELF, &requests[0]));
    OK(MPI_Isend(&one, 1, MPI_INT, 0, 1, MPI_COMM_SELF, &requests[1]));
    OK(MPI_Waitall(2, requests, statuses));
    CHECK(statuses[0].MPI_ERROR == MPI_SUCCESS && statuses[1].MPI_ERROR == MPI_SUCCESS);
}

static void operands(void) {
    char letter = (char)(rank + 1), most;
    long double wide = 1 + 1e-18L * (rank + 1), sum, product;
    struct {
        long double value;
        int index;
    } here = {-(long double)rank, rank}, best;
    OK(MPI_Allreduce(&letter, &most, 1, MPI_CHAR, MPI_MAX, MPI_COMM_WORLD));
    CHECK(most == size);
    OK(MPI_Allreduce(&wide, &sum, 1, MPI_LONG_DOUBLE, MPI_SUM, MPI_COMM_WORLD));
    OK(MPI_Allreduce(&wide, &product, 1, MPI_LONG_DOUBLE, MPI_PROD, MPI_COMM_WORLD));
    long double s = 0, p = 1;
    for (int i = 0; i < size; i++) s += 1 + 1e-18L * (i + 1), p *= 1 + 1e-18L * (i + 1);
    /* Of two ranks there is one order of operands, up to commutation. */
    if (size == 2) CHECK(sum == s && product == p);
    OK(MPI_Allreduce(&here, &best, 1, MPI_LONG_DOUBLE_INT, MPI_MINLOC, MPI_COMM_WORLD));
    CHECK(best.index == size - 1 && best.value == -(long double)(size - 1));

    int a[3] = {1, 2, 3}, b[3] = {1, 1, 1};
    FAILS(MPI_Reduce_local(MPI_IN_PLACE, b, 3, MPI_INT, MPI_SUM), MPI_ERR_BUFFER);
    FAILS(MPI_Reduce_local(a, MPI_IN_PLACE, 3, MPI_INT, MPI_SUM), MPI_ERR_BUFFER);
    FAILS(MPI_Reduce_local(a, a, 3, MPI_INT, MPI_SUM), MPI_ERR_BUFFER);
    OK(MPI_Reduce_local(a, b, 3, MPI_INT, MPI_SUM));
    CHECK(b[2] == 4);
}

static void add_firsts(void *in, void *inout, int *count, MPI_Datatype *type) {
    (void)type;
    for (int i = 0; i < *count; i++) ((int *)inout)[2 * i] += ((int *)in)[2 * i];
}

/* A function of the program sees its elements as they lie, with what is between them. */
static void gaps(void) {
    MPI_Datatype first;
    MPI_Op op;
    int a[4] = {1, 10, 2, 20}, b[4] = {5, 50, 6, 60};
    OK(MPI_Type_create_resized(MPI_INT, 0, 2 * sizeof(int), &first));
    OK(MPI_Type_commit(&first));
    OK(MPI_Op_create(add_firsts, 1, &op));
    OK(MPI_Reduce_local(a, b, 2, first, op));
    CHECK(b[0] == 6 && b[1] == 50 && b[2] == 8 && b[3] == 60);
    OK(MPI_Op_free(&op));
    OK(MPI_Type_free(&first));
}

static void one_buffer_for_both(void) {
    int a[64] = {0};
    FAILS(MPI_Allreduce(a, a, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD), MPI_ERR_BUFFER);
    FAILS(MPI_Allgather(a, 1, MPI_INT, a, 1, MPI_INT, MPI_COMM_WORLD), MPI_ERR_BUFFER);
    FAILS(MPI_Alltoall(a, 1, MPI_INT, a, 1, MPI_INT, MPI_COMM_WORLD), MPI_ERR_BUFFER);
    FAILS(MPI_Scan(a, a, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD), MPI_ERR_BUFFER);
    if (rank == 0) {
        FAILS(MPI_Gather(a, 1, MPI_INT, a, 1, MPI_INT, 0, MPI_COMM_WORLD), MPI_ERR_BUFFER);
    }
    int counts[16], places[16], bytes[16];
    MPI_Datatype types[16];
    MPI_Request request;
    for (int i = 0; i < size; i++) {
        counts[i] = 1;
        places[i] = i;
        bytes[i] = 4 * i;
        types[i] = MPI_INT;
    }
    /* The own block of the buffer of all. */
    FAILS(MPI_Allgather(&a[rank], 1, MPI_INT, a, 1, MPI_INT, MPI_COMM_WORLD), MPI_ERR_BUFFER);
    FAILS(MPI_Allgatherv(&a[rank], 1, MPI_INT, a, counts, places, MPI_INT, MPI_COMM_WORLD),
          MPI_ERR_BUFFER);
    FAILS(MPI_Ialltoallv(a, counts, places, MPI_INT, a, counts, places, MPI_INT, MPI_COMM_WORLD,
                         &request), MPI_ERR_BUFFER);
    FAILS(MPI_Alltoallw(a, counts, bytes, types, a, counts, bytes, types, MPI_COMM_WORLD),
          MPI_ERR_BUFFER);
    FAILS(MPI_Reduce_scatter(a, a, counts, MPI_INT, MPI_SUM, MPI_COMM_WORLD), MPI_ERR_BUFFER);
    if (rank == size - 1) {
        FAILS(MPI_Gather(&a[rank], 1, MPI_INT, a, 1, MPI_INT, rank, MPI_COMM_WORLD),
              MPI_ERR_BUFFER);
        FAILS(MPI_Scatter(a, 1, MPI_INT, &a[rank], 1, MPI_INT, rank, MPI_COMM_WORLD),
              MPI_ERR_BUFFER);
        FAILS(MPI_Scatterv(a, counts, places, MPI_INT, &a[rank], 1, MPI_INT, rank,
                           MPI_COMM_WORLD), MPI_ERR_BUFFER);
    }
    /* Of one memory, but apart: what is sent lies behind what comes. */
    int behind[16];
    for (int i = 0; i < size; i++) {
        behind[i] = size + i;
        a[size + i] = 10 * rank + i;
    }
    OK(MPI_Alltoallv(a, counts, behind, MPI_INT, a, counts, places, MPI_INT, MPI_COMM_WORLD));
    for (int i = 0; i < size; i++) CHECK(a[i] == 10 * i + rank);
    OK(MPI_Gatherv(a, 1, MPI_INT, a, counts, behind, MPI_INT, 0, MPI_COMM_WORLD));
    if (rank == 0)
        for (int i = 0; i < size; i++) CHECK(a[size + i] == i);
    OK(MPI_Allreduce(MPI_IN_PLACE, a, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
    OK(MPI_Allreduce(a, a, 0, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
}

static void nothing(void) {
    MPI_Status status;
    OK(MPI_Recv(NULL, 0, MPI_DATATYPE_NULL, MPI_PROC_NULL, 0, MPI_COMM_WORLD, &status));
    CHECK(status.MPI_SOURCE == MPI_PROC_NULL && status.MPI_TAG == MPI_ANY_TAG);
    int next = (rank + 1) % size, previous = (rank + size - 1) % size;
    OK(MPI_Sendrecv(NULL, 0, MPI_DATATYPE_NULL, next, 1, NULL, 0, MPI_DATATYPE_NULL, previous,
                    1, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    FAILS(MPI_Send(&next, 1, MPI_DATATYPE_NULL, next, 1, MPI_COMM_WORLD), MPI_ERR_TYPE);
}

/* One of two messages is too long: both are told of, and which is which. */
static void too_long(void) {
    int data[4] = {0};
    if (rank == 0) {
        OK(MPI_Send(data, 2, MPI_INT, 1, 7, MPI_COMM_WORLD));
        OK(MPI_Send(data, 3, MPI_INT, 1, 8, MPI_COMM_WORLD));
    } else if (rank == 1) {
        MPI_Request two[2];
        MPI_Status statuses[2];
        int places[2], n, all = 0, class;
        OK(MPI_Irecv(data, 2, MPI_INT, MPI_ANY_SOURCE, 7, MPI_COMM_WORLD, &two[0]));
        OK(MPI_Irecv(data + 2, 2, MPI_INT, MPI_ANY_SOURCE, 8, MPI_COMM_WORLD, &two[1]));
        while (all < 2) {
            MPI_Error_class(MPI_Waitsome(2, two, &n, places, statuses), &class);
            CHECK(n == 1 || n == 2);
            for (int i = 0; i < n; i++) {
                int wanted = places[i] == 0 ? MPI_SUCCESS : MPI_ERR_TRUNCATE;
                CHECK(statuses[i].MPI_SOURCE == 0 && statuses[i].MPI_TAG == 7 + places[i]);
                if (class == MPI_ERR_IN_STATUS) CHECK(statuses[i].MPI_ERROR == wanted);
                else CHECK(class == MPI_SUCCESS && places[i] == 0);
            }
            all += n;
        }
    }
}

static void sets(void) {
    MPI_Session session;
    MPI_Group group;
    int n;
    OK(MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_RETURN, &session));
    OK(MPI_Group_from_session_pset(session, "mpi://world", &group));
    OK(MPI_Group_size(group, &n));
    CHECK(n == size);
    OK(MPI_Group_free(&group));
    OK(MPI_Session_finalize(&session));
}

/* The end of MPI completes what was freed before it was over. */
static int late[100000], sent[100000];

static void freed(void) {
    MPI_Request request;
    if (rank == 0) {
        OK(MPI_Irecv(late, 100000, MPI_INT, size - 1, 9, MPI_COMM_WORLD, &request));
        OK(MPI_Request_free(&request));
        CHECK(request == MPI_REQUEST_NULL);
    }
    OK(MPI_Barrier(MPI_COMM_WORLD));
    if (rank == size - 1) {
        sent[99999] = 5;
        OK(MPI_Isend(sent, 100000, MPI_INT, 0, 9, MPI_COMM_WORLD, &request));
        if (size > 1) OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
        else OK(MPI_Request_free(&request));
    }
}

int main(int argc, char **argv) {
    begin(&argc, &argv);
    handlers();
    given_handlers();
    went_well();
    keys();
    operands();
    gaps();
    one_buffer_for_both();
    nothing();
    if (size > 1) too_long();
    sets();
    freed();
    OK(MPI_Finalize());
    CHECK(rank != 0 || size == 1 || late[99999] == 5);
    if (rank == 0) printf("through\n");
    return 0;
}
