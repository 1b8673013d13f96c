/* Error handlers: whose is called, with what, and what becomes of them. With an argument:
 * the end that it names. */
#include "check.h"

static int x, calls, last_class;
static MPI_Comm last_comm;
static MPI_Session last_session;

static void of_comm(MPI_Comm *comm, int *code, ...) {
    calls++;
    last_comm = *comm;
    MPI_Error_class(*code, &last_class);
}

static void of_session(MPI_Session *session, int *code, ...) {
    calls++;
    last_session = *session;
    MPI_Error_class(*code, &last_class);
}

static void replaces(MPI_Comm *comm, int *code, ...) {
    (void)code;
    calls++;
    /* A handler may call MPI, and set another. */
    OK(MPI_Comm_set_errhandler(*comm, MPI_ERRORS_RETURN));
    FAILS(MPI_Send(&x, -1, MPI_INT, 0, 0, *comm), MPI_ERR_COUNT);
}

#define HEARD(call, class, comm)                                                         \
    do {                                                                                 \
        calls = 0;                                                                       \
        FAILS(call, class);                                                              \
        CHECK(calls == 1 && last_class == (class) && last_comm == (comm));               \
    } while (0)

static void ends(const char *how) {
    if (!strcmp(how, "abort")) MPI_Abort(MPI_COMM_WORLD, 42);
    if (!strcmp(how, "abort-self")) MPI_Abort(MPI_COMM_SELF, 43);
    if (!strcmp(how, "fatal")) MPI_Barrier(MPI_COMM_NULL);
    if (!strcmp(how, "errors-abort")) {
        OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ABORT));
        MPI_Send(&x, 1, MPI_INT, size, 0, MPI_COMM_WORLD);
    }
    if (!strcmp(how, "called")) {
        OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL));
        MPI_Comm_call_errhandler(MPI_COMM_WORLD, MPI_ERR_IO);
    }
    if (!strcmp(how, "session-fatal")) {
        MPI_Session session;
        int n;
        char name[8];
        OK(MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &session));
        n = sizeof name;
        MPI_Session_get_nth_pset(session, MPI_INFO_NULL, 4711, &n, name);
    }
}

int main(int argc, char **argv) {
    begin(&argc, &argv);
    if (argc > 1) {
        ends(argv[1]);
        return 0;
    }
    MPI_Errhandler handler, again;
    MPI_Comm dup;
    MPI_Request request;
    OK(MPI_Comm_create_errhandler(of_comm, &handler));
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, handler));
    HEARD(MPI_Send(&x, 1, MPI_INT, size, 0, MPI_COMM_WORLD), MPI_ERR_RANK, MPI_COMM_WORLD);
    /* A duplicate has it, too, and goes on with it. */
    OK(MPI_Comm_dup(MPI_COMM_WORLD, &dup));
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    OK(MPI_Errhandler_free(&handler));
    CHECK(handler == MPI_ERRHANDLER_NULL);
    HEARD(MPI_Bcast(&x, 1, MPI_INT, size, dup), MPI_ERR_ROOT, dup);
    OK(MPI_Comm_get_errhandler(dup, &again));
    /* What has no object is heard by that of MPI_COMM_SELF, as are null and wrong ones. */
    OK(MPI_Comm_set_errhandler(MPI_COMM_SELF, again));
    OK(MPI_Errhandler_free(&again));
    HEARD(MPI_Type_size(MPI_DATATYPE_NULL, &x), MPI_ERR_TYPE, MPI_COMM_SELF);
    HEARD(MPI_Barrier(MPI_COMM_NULL), MPI_ERR_COMM, MPI_COMM_SELF);
    HEARD(MPI_Comm_rank((MPI_Comm)MPI_INT, &x), MPI_ERR_COMM, MPI_COMM_SELF);
    /* A request's error is its communicator's. */
    int pair[2] = {1, 2};
    OK(MPI_Irecv(&x, 1, MPI_INT, rank, 0, dup, &request));
    OK(MPI_Send(pair, 2, MPI_INT, rank, 0, dup));
    HEARD(MPI_Wait(&request, MPI_STATUS_IGNORE), MPI_ERR_TRUNCATE, dup);
    /* Called by the program. */
    calls = 0;
    OK(MPI_Comm_call_errhandler(dup, MPI_ERR_IO));
    CHECK(calls == 1 && last_class == MPI_ERR_IO && last_comm == dup);
    /* One that replaces itself. */
    OK(MPI_Comm_create_errhandler(replaces, &handler));
    OK(MPI_Comm_set_errhandler(dup, handler));
    OK(MPI_Errhandler_free(&handler));
    calls = 0;
    FAILS(MPI_Send(&x, 1, MPI_INT, 0, -9, dup), MPI_ERR_TAG);
    FAILS(MPI_Send(&x, 1, MPI_INT, 0, -9, dup), MPI_ERR_TAG);
    CHECK(calls == 1);
    OK(MPI_Comm_free(&dup));
    /* Sessions have their own. */
    MPI_Session session;
    MPI_Errhandler own;
    char name[64];
    int n = sizeof name;
    OK(MPI_Session_create_errhandler(of_session, &own));
    OK(MPI_Session_init(MPI_INFO_NULL, own, &session));
    OK(MPI_Errhandler_free(&own));
    calls = 0;
    CHECK(MPI_Session_get_nth_pset(session, MPI_INFO_NULL, 4711, &n, name) != MPI_SUCCESS);
    CHECK(calls == 1 && last_session == session);
    OK(MPI_Session_call_errhandler(session, MPI_ERR_IO));
    CHECK(calls == 2 && last_class == MPI_ERR_IO);
    OK(MPI_Session_finalize(&session));
    OK(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_ARE_FATAL));
    return end();
}
