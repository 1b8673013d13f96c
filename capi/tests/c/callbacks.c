/* Functions of the program that the library calls: reductions, copies and deletions of
 * attributes, error handlers, queries. Each communicates on the communicator for which it is
 * called. */
#include "check.h"

static int depth, reductions, copies, deletions, errors, queries;

/* Short and long messages to itself, and probes. */
static void talk(MPI_Comm comm) {
    static int out[30000], in[30000];
    int me, flag, counts[2] = {1, 30000};
    if (depth) return;
    depth++;
    OK(MPI_Comm_rank(comm, &me));
    for (int i = 0; i < 2; i++) {
        MPI_Request request;
        out[0] = 5 + i;
        OK(MPI_Irecv(in, counts[i], MPI_INT, me, 4711, comm, &request));
        OK(MPI_Send(out, counts[i], MPI_INT, me, 4711, comm));
        OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
        CHECK(in[0] == 5 + i);
    }
    OK(MPI_Iprobe(me, 4711, comm, &flag, MPI_STATUS_IGNORE));
    CHECK(!flag);
    depth--;
}

static void sum(void *in, void *inout, int *n, MPI_Datatype *type) {
    (void)type;
    reductions++;
    talk(MPI_COMM_WORLD);
    for (int i = 0; i < *n; i++) ((int *)inout)[i] += ((int *)in)[i];
}

static int copy(MPI_Comm comm, int key, void *extra, void *in, void *out, int *flag) {
    (void)key, (void)extra;
    copies++;
    talk(comm);
    *(void **)out = in;
    *flag = 1;
    return MPI_SUCCESS;
}

static int deletes(MPI_Comm comm, int key, void *value, void *extra) {
    (void)key, (void)value, (void)extra;
    deletions++;
    talk(comm);
    return MPI_SUCCESS;
}

static void handles(MPI_Comm *comm, int *code, ...) {
    (void)code;
    errors++;
    talk(*comm);
}

static int query(void *extra, MPI_Status *status) {
    (void)extra;
    queries++;
    talk(MPI_COMM_WORLD);
    OK(MPI_Status_set_elements(status, MPI_INT, 0));
    OK(MPI_Status_set_cancelled(status, 0));
    status->MPI_SOURCE = MPI_UNDEFINED;
    status->MPI_TAG = MPI_UNDEFINED;
    return MPI_SUCCESS;
}

static int nothing(void *extra) {
    (void)extra;
    return MPI_SUCCESS;
}

static int ignores(void *extra, int complete) {
    (void)extra, (void)complete;
    return MPI_SUCCESS;
}

static int last_deletion(MPI_Comm comm, int key, void *value, void *extra) {
    (void)key, (void)value, (void)extra;
    talk(comm);
    if (rank == 0) printf("through\n");
    return MPI_SUCCESS;
}

int main(int argc, char **argv) {
    static int mine[20000], all[20000];
    int key, last, n[2] = {1, 20000}, everywhere;
    MPI_Op op;
    MPI_Comm first, second;
    MPI_Errhandler handler;
    MPI_Request request;
    begin(&argc, &argv);

    OK(MPI_Op_create(sum, 1, &op));
    for (int i = 0; i < 2; i++) {
        mine[0] = rank + 1;
        OK(MPI_Allreduce(mine, all, n[i], MPI_INT, op, MPI_COMM_WORLD));
        CHECK(all[0] == size * (size + 1) / 2);
        OK(MPI_Iallreduce(mine, all, n[i], MPI_INT, op, MPI_COMM_WORLD, &request));
        OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
        CHECK(all[0] == size * (size + 1) / 2);
        OK(MPI_Reduce(mine, all, n[i], MPI_INT, op, 0, MPI_COMM_WORLD));
        OK(MPI_Scan(mine, all, n[i], MPI_INT, op, MPI_COMM_WORLD));
        CHECK(all[0] == (rank + 1) * (rank + 2) / 2);
    }
    OK(MPI_Allreduce(&reductions, &everywhere, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
    CHECK(size == 1 || everywhere > 0);
    OK(MPI_Op_free(&op));

    OK(MPI_Comm_create_keyval(copy, deletes, &key, NULL));
    OK(MPI_Comm_dup(MPI_COMM_WORLD, &first));
    OK(MPI_Comm_set_attr(first, key, &key));
    OK(MPI_Comm_dup(first, &second));
    CHECK(copies == 1);
    OK(MPI_Comm_free(&second));
    OK(MPI_Comm_delete_attr(first, key));
    CHECK(deletions == 2);
    OK(MPI_Comm_free_keyval(&key));

    OK(MPI_Comm_create_errhandler(handles, &handler));
    OK(MPI_Comm_set_errhandler(first, handler));
    FAILS(MPI_Send(mine, 1, MPI_INT, size, 0, first), MPI_ERR_RANK);
    CHECK(errors == 1);
    OK(MPI_Errhandler_free(&handler));
    OK(MPI_Comm_free(&first));

    OK(MPI_Grequest_start(query, nothing, ignores, NULL, &request));
    OK(MPI_Grequest_complete(request));
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    CHECK(queries == 1);

    /* MPI_Finalize deletes the attributes of MPI_COMM_SELF first: MPI is still there. */
    OK(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, last_deletion, &last, NULL));
    OK(MPI_Comm_set_attr(MPI_COMM_SELF, last, NULL));
    OK(MPI_Barrier(MPI_COMM_WORLD));
    OK(MPI_Finalize());
    return 0;
}
