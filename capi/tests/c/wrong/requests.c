/* Requests, and the order of calls. */
#include "wrong.h"

static int value = 1;

CASE(waited_twice, 2, "a copy of a request's handle is waited for after the request", "error",
     "a handle that is no request")
{
    MPI_Request request, copy = MPI_REQUEST_NULL;
    if (rank == 0) {
        MPI_Isend(&value, 1, MPI_INT, 1, 0, MPI_COMM_WORLD, &request);
        if (wrong)
            copy = request;
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        MPI_Wait(&copy, MPI_STATUS_IGNORE);
    } else {
        MPI_Recv(&value, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
}

CASE(never_set, 1, "a request is waited for that no call has made", "error",
     "a handle that is no request")
{
    MPI_Request request = wrong ? (MPI_Request)0x7fffabcd1234 : MPI_REQUEST_NULL;
    MPI_Wait(&request, MPI_STATUS_IGNORE);
}

CASE(started_twice, 2, "a persistent request is started while it is active", "error",
     "MPI_Start")
{
    MPI_Request request;
    if (rank == 0) {
        MPI_Recv_init(&value, 1, MPI_INT, 1, 0, MPI_COMM_WORLD, &request);
        MPI_Start(&request);
        if (wrong)
            MPI_Start(&request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        MPI_Request_free(&request);
    } else {
        MPI_Send(&value, 1, MPI_INT, 0, 0, MPI_COMM_WORLD);
    }
}

CASE(not_persistent, 2, "a request that does not persist is started", "error",
     "start of a request that does not persist")
{
    MPI_Request request;
    if (rank == 0) {
        MPI_Irecv(&value, 1, MPI_INT, 1, 0, MPI_COMM_WORLD, &request);
        if (wrong)
            MPI_Start(&request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    } else {
        MPI_Send(&value, 1, MPI_INT, 0, 0, MPI_COMM_WORLD);
    }
}

CASE(collective_cancelled, 2, "a nonblocking collective is cancelled", "error", "MPI_Cancel")
{
    MPI_Request request;
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    if (wrong)
        MPI_Cancel(&request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
}

CASE(collective_freed, 2, "the request of a nonblocking collective is freed", "error",
     "MPI_Request_free")
{
    MPI_Request request;
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    if (wrong)
        MPI_Request_free(&request);
    else
        MPI_Wait(&request, MPI_STATUS_IGNORE);
}

CASE(ready_too_early, 2, "a ready-mode send comes before its receive", "ready",
     "a ready-mode send came before its receive was posted")
{
    MPI_Request request;
    if (rank == 0) {
        if (!wrong)
            MPI_Barrier(MPI_COMM_WORLD);
        MPI_Rsend(&value, 1, MPI_INT, 1, 0, MPI_COMM_WORLD);
        if (wrong)
            MPI_Barrier(MPI_COMM_WORLD);
    } else {
        if (wrong)
            MPI_Barrier(MPI_COMM_WORLD);
        MPI_Irecv(&value, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, &request);
        if (!wrong)
            MPI_Barrier(MPI_COMM_WORLD);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
}

CASE(partition_too_large, 2, "a partition is made ready that the request has not", "error",
     "MPI_Pready")
{
    int values[4] = {0};
    MPI_Request request;
    if (rank == 0)
        MPI_Psend_init(values, 2, 2, MPI_INT, 1, 0, MPI_COMM_WORLD, MPI_INFO_NULL, &request);
    else
        MPI_Precv_init(values, 2, 2, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_INFO_NULL, &request);
    MPI_Start(&request);
    if (rank == 0) {
        MPI_Pready(0, request);
        MPI_Pready(wrong ? 2 : 1, request);
    }
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Request_free(&request);
}

CASE(partition_twice, 2, "a partition is made ready twice", "error", "MPI_Pready")
{
    int values[4] = {0};
    MPI_Request request;
    if (rank == 0)
        MPI_Psend_init(values, 2, 2, MPI_INT, 1, 0, MPI_COMM_WORLD, MPI_INFO_NULL, &request);
    else
        MPI_Precv_init(values, 2, 2, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_INFO_NULL, &request);
    MPI_Start(&request);
    if (rank == 0) {
        MPI_Pready(0, request);
        MPI_Pready(wrong ? 0 : 1, request);
    }
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Request_free(&request);
}

CASE_ALONE(before_init, 1, "a call before MPI_Init", "error", "a call before MPI_Init")
{
    if (!wrong)
        MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (wrong)
        MPI_Init(NULL, NULL);
    MPI_Finalize();
}

CASE_ALONE(after_finalize, 1, "a call after MPI_Finalize", "error", "a call after MPI_Finalize")
{
    MPI_Init(NULL, NULL);
    if (!wrong)
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Finalize();
    if (wrong)
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
}

CASE_ALONE(init_twice, 1, "MPI_Init is called twice", "error", "MPI_Init for the second time")
{
    MPI_Init(NULL, NULL);
    if (wrong)
        MPI_Init(NULL, NULL);
    MPI_Finalize();
}

CASE_ALONE(no_finalize, 2, "a rank ends without MPI_Finalize while another one waits for it",
           "death", "rank 1")
{
    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 1) {
        if (wrong)
            _exit(0);
        MPI_Send(&value, 1, MPI_INT, 0, 0, MPI_COMM_WORLD);
    } else {
        MPI_Recv(&value, 1, MPI_INT, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    MPI_Finalize();
}

CASE_ALONE(ends_unfinalized, 1, "a program returns from main without MPI_Finalize", "leaks",
           "leak: the process ends and has not called MPI_Finalize")
{
    MPI_Init(NULL, NULL);
    if (!wrong)
        MPI_Finalize();
}

CASE(never_received, 2, "a message is sent that nobody receives", "leaks",
     "leak: a message was never received: message from rank 0, tag 0")
{
    int values[2] = {0};
    if (rank == 0)
        MPI_Send(values, 2, MPI_INT, 1, 0, MPI_COMM_WORLD);
    else if (!wrong)
        MPI_Recv(values, 2, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Barrier(MPI_COMM_WORLD);
}
