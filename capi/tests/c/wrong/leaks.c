/* Handles that are left at the end. */
#include "wrong.h"

#define UNLESS_WRONG(free) \
    do {                   \
        if (!wrong)        \
            free;          \
    } while (0)

static void nothing(void *in, void *inout, int *n, MPI_Datatype *type)
{
    (void)in, (void)inout, (void)n, (void)type;
}

static void handler(MPI_Comm *comm, int *code, ...)
{
    (void)comm, (void)code;
}

CASE(communicator, 2, "a communicator is duplicated and not freed", "leaks",
     "leak: a communicator is left at the end: of 2 ranks")
{
    MPI_Comm comm;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    UNLESS_WRONG(MPI_Comm_free(&comm));
}

CASE(split, 2, "a communicator is split off and not freed", "leaks",
     "leak: a communicator is left at the end: \"mine\", of 1 rank")
{
    MPI_Comm comm;
    MPI_Comm_split(MPI_COMM_WORLD, rank, 0, &comm);
    MPI_Comm_set_name(comm, "mine");
    UNLESS_WRONG(MPI_Comm_free(&comm));
}

CASE(grid, 2, "a Cartesian communicator is not freed", "leaks",
     "leak: a communicator is left at the end")
{
    int dims[1] = {2}, periodic[1] = {1};
    MPI_Comm comm;
    MPI_Cart_create(MPI_COMM_WORLD, 1, dims, periodic, 0, &comm);
    UNLESS_WRONG(MPI_Comm_free(&comm));
}

CASE(members, 2, "a group is not freed", "leaks", "leak: a group is left at the end: of 2 ranks")
{
    MPI_Group group;
    MPI_Comm_group(MPI_COMM_WORLD, &group);
    UNLESS_WRONG(MPI_Group_free(&group));
}

CASE(datatype, 1, "a derived datatype is not freed", "leaks",
     "leak: a datatype is left at the end: i32 x 3")
{
    MPI_Datatype type;
    MPI_Type_contiguous(3, MPI_INT, &type);
    MPI_Type_commit(&type);
    UNLESS_WRONG(MPI_Type_free(&type));
}

CASE(contents, 1, "a datatype that MPI_Type_get_contents returned is not freed", "leaks",
     "leak: a datatype is left at the end")
{
    MPI_Datatype inner, outer, found;
    int n;
    MPI_Aint nowhere;
    MPI_Type_contiguous(3, MPI_INT, &inner);
    MPI_Type_contiguous(2, inner, &outer);
    MPI_Type_free(&inner);
    MPI_Type_get_contents(outer, 1, 0, 1, &n, &nowhere, &found);
    MPI_Type_free(&outer);
    UNLESS_WRONG(MPI_Type_free(&found));
}

CASE(send_request, 2, "a send is begun and never completed", "leaks",
     "leak: a request is left at the end: a send that was not completed")
{
    int value = 1;
    MPI_Request request;
    if (rank == 0) {
        MPI_Isend(&value, 1, MPI_INT, 1, 0, MPI_COMM_WORLD, &request);
        UNLESS_WRONG(MPI_Wait(&request, MPI_STATUS_IGNORE));
    } else {
        MPI_Recv(&value, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
}

CASE(receive_request, 2, "a receive is begun and never completed", "leaks",
     "leak: a request is left at the end: a receive that was not completed")
{
    static int value = 1;
    MPI_Request request;
    if (rank == 0) {
        MPI_Irecv(&value, 1, MPI_INT, 1, 0, MPI_COMM_WORLD, &request);
        UNLESS_WRONG(MPI_Wait(&request, MPI_STATUS_IGNORE));
        MPI_Barrier(MPI_COMM_WORLD);
    } else {
        MPI_Send(&value, 1, MPI_INT, 0, 0, MPI_COMM_WORLD);
        MPI_Barrier(MPI_COMM_WORLD);
    }
}

CASE(request_twice, 2, "a second operation takes the handle of one that was not completed",
     "leaks", "leak: a request is left at the end: a send that was not completed")
{
    int value = 1;
    MPI_Request request;
    if (rank == 0) {
        MPI_Isend(&value, 1, MPI_INT, 1, 0, MPI_COMM_WORLD, &request);
        UNLESS_WRONG(MPI_Wait(&request, MPI_STATUS_IGNORE));
        MPI_Isend(&value, 1, MPI_INT, 1, 1, MPI_COMM_WORLD, &request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    } else {
        MPI_Recv(&value, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Recv(&value, 1, MPI_INT, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
}

CASE(collective_request, 2, "a nonblocking barrier is never completed", "leaks",
     "leak: a request is left at the end: a collective call that was not completed")
{
    MPI_Request request;
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    UNLESS_WRONG(MPI_Wait(&request, MPI_STATUS_IGNORE));
    MPI_Barrier(MPI_COMM_WORLD);
}

CASE(persistent_request, 1, "a persistent request is not freed", "leaks",
     "leak: a request is left at the end: a persistent send that was not freed")
{
    int value = 1;
    MPI_Request request;
    MPI_Send_init(&value, 1, MPI_INT, MPI_PROC_NULL, 0, MPI_COMM_WORLD, &request);
    MPI_Start(&request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    UNLESS_WRONG(MPI_Request_free(&request));
}

CASE(partitioned_request, 2, "a partitioned request is not freed", "leaks", "partitioned")
{
    int values[4] = {1, 2, 3, 4};
    MPI_Request request;
    if (rank == 0)
        MPI_Psend_init(values, 2, 2, MPI_INT, 1, 0, MPI_COMM_WORLD, MPI_INFO_NULL, &request);
    else
        MPI_Precv_init(values, 2, 2, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_INFO_NULL, &request);
    MPI_Start(&request);
    if (rank == 0)
        MPI_Pready_range(0, 1, request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    UNLESS_WRONG(MPI_Request_free(&request));
}

CASE(collective_init, 2, "a persistent collective is not freed", "leaks",
     "leak: a request is left at the end: a persistent collective that was not freed")
{
    MPI_Request request;
    MPI_Barrier_init(MPI_COMM_WORLD, MPI_INFO_NULL, &request);
    MPI_Start(&request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    UNLESS_WRONG(MPI_Request_free(&request));
}

CASE(operator, 1, "an operator is not freed", "leaks", "leak: an operator is left at the end")
{
    MPI_Op op;
    MPI_Op_create(nothing, 1, &op);
    UNLESS_WRONG(MPI_Op_free(&op));
}

CASE(info, 1, "an info is not freed", "leaks", "leak: an info is left at the end: of 1 key")
{
    MPI_Info info;
    MPI_Info_create(&info);
    MPI_Info_set(info, "key", "value");
    UNLESS_WRONG(MPI_Info_free(&info));
}

CASE(error_handler, 1, "an error handler is not freed", "leaks",
     "leak: an error handler is left at the end")
{
    MPI_Errhandler errhandler;
    MPI_Comm_create_errhandler(handler, &errhandler);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, errhandler);
    UNLESS_WRONG(MPI_Errhandler_free(&errhandler));
}

CASE(key, 1, "a key of attributes is not freed", "leaks",
     "leak: a key is left at the end: of attributes of communicators")
{
    int keyval;
    MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, MPI_COMM_NULL_DELETE_FN, &keyval, NULL);
    UNLESS_WRONG(MPI_Comm_free_keyval(&keyval));
}

CASE(attached_buffer, 1, "an attached buffer is not detached", "leaks",
     "leak: an attached buffer is left at the end: of the process")
{
    static char memory[1000 + MPI_BSEND_OVERHEAD];
    void *had;
    int bytes;
    MPI_Buffer_attach(memory, sizeof memory);
    UNLESS_WRONG(MPI_Buffer_detach(&had, &bytes));
}

CASE(matched_message, 2, "a message that MPI_Mprobe took is never received", "leaks",
     "leak: a message is left at the end: matched, and never received")
{
    int value = 1;
    MPI_Message message;
    if (rank == 0) {
        MPI_Send(&value, 1, MPI_INT, 1, 0, MPI_COMM_WORLD);
    } else {
        MPI_Mprobe(0, 0, MPI_COMM_WORLD, &message, MPI_STATUS_IGNORE);
        UNLESS_WRONG(MPI_Mrecv(&value, 1, MPI_INT, &message, MPI_STATUS_IGNORE));
    }
}

CASE_ALONE(session, 1, "a session is not finalized", "leaks",
           "leak: a session is left at the end: never finalized")
{
    MPI_Session session;
    MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_RETURN, &session);
    UNLESS_WRONG(MPI_Session_finalize(&session));
}

CASE_ALONE(session_group, 1, "a group of a session is not freed", "leaks",
           "leak: a group is left at the end: of 1 rank")
{
    MPI_Session session;
    MPI_Group group;
    MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_RETURN, &session);
    MPI_Group_from_session_pset(session, "mpi://SELF", &group);
    UNLESS_WRONG(MPI_Group_free(&group));
    MPI_Session_finalize(&session);
}
