/* Ranks that make different collective calls. */
#include "wrong.h"

#define MISMATCH "collective calls do not match"

static int values[64], others[64];

CASE(other_calls, 2, "one rank broadcasts, the other reduces", "collectives",
     MISMATCH ": other calls")
{
    if (wrong && rank == 1)
        MPI_Reduce(values, others, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    else
        MPI_Bcast(values, 1, MPI_INT, 0, MPI_COMM_WORLD);
}

CASE(other_order, 2, "the ranks make two calls in another order", "collectives", MISMATCH)
{
    if (wrong && rank == 1) {
        MPI_Bcast(values, 1, MPI_INT, 0, MPI_COMM_WORLD);
        MPI_Barrier(MPI_COMM_WORLD);
    } else {
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Bcast(values, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
}

CASE(other_roots, 2, "the ranks name different roots", "collectives", MISMATCH ": other roots")
{
    MPI_Bcast(values, 1, MPI_INT, wrong ? rank : 0, MPI_COMM_WORLD);
}

CASE(other_operators, 2, "the ranks reduce by different operators", "collectives",
     MISMATCH ": other operators")
{
    MPI_Op op = wrong && rank == 1 ? MPI_MAX : MPI_SUM;
    MPI_Allreduce(values, others, 1, MPI_INT, op, MPI_COMM_WORLD);
}

CASE(other_counts, 2, "the ranks have different counts", "collectives",
     MISMATCH ": other counts")
{
    MPI_Allreduce(values, others, wrong ? rank + 1 : 2, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
}

CASE(other_counts_of_gather, 2, "the ranks contribute different counts to MPI_Gather",
     "error", "from each of 2 ranks into")
{
    MPI_Gather(values, wrong ? rank + 1 : 2, MPI_INT, others, 2, MPI_INT, 0, MPI_COMM_WORLD);
}

CASE(other_types, 2, "the ranks reduce different types", "collectives",
     MISMATCH ": other types")
{
    MPI_Datatype type = wrong && rank == 1 ? MPI_FLOAT : MPI_INT;
    MPI_Allreduce(values, others, 2, type, MPI_SUM, MPI_COMM_WORLD);
}

CASE(blocking_and_nonblocking, 2, "one rank calls MPI_Barrier, the other MPI_Ibarrier",
     "collectives", MISMATCH ": one call waits, and one does not")
{
    MPI_Request request = MPI_REQUEST_NULL;
    if (wrong && rank == 1)
        MPI_Ibarrier(MPI_COMM_WORLD, &request);
    else
        MPI_Barrier(MPI_COMM_WORLD);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
}

CASE(counts_of_others, 2, "a rank expects another count than is sent in MPI_Alltoallv", "error",
     "MPI_Alltoallv")
{
    int send[2] = {1, 1}, recv[2] = {1, 1}, at[2] = {0, 8};
    if (wrong && rank == 0)
        send[1] = 3;
    MPI_Alltoallv(values, send, at, MPI_INT, others, recv, at, MPI_INT, MPI_COMM_WORLD);
}

CASE(gatherv_too_long, 2, "a rank contributes more to MPI_Gatherv than its root expects",
     "error", "MPI_Gatherv")
{
    int counts[2] = {1, 1}, at[2] = {0, 8};
    MPI_Gatherv(values, wrong ? 2 : 1, MPI_INT, others, counts, at, MPI_INT, 0, MPI_COMM_WORLD);
}

CASE(send_is_receive, 2, "the buffers of an allreduce are one, without MPI_IN_PLACE", "error",
     "one buffer to send from and to receive into")
{
    if (wrong)
        MPI_Allreduce(values, values, 4, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    else
        MPI_Allreduce(MPI_IN_PLACE, values, 4, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
}

CASE(send_in_receive, 2, "the buffers of an alltoall overlap", "buffers", "a buffer is in use")
{
    MPI_Alltoall(values, 2, MPI_INT, wrong ? values + 2 : others, 2, MPI_INT, MPI_COMM_WORLD);
}

CASE(gather_in_place_by_hand, 2, "the root of a gather sends from its place in the result",
     "error", "one buffer to send from and to receive into")
{
    if (wrong || rank != 0)
        MPI_Gather(others + 2 * rank, 2, MPI_INT, others, 2, MPI_INT, 0, MPI_COMM_WORLD);
    else
        MPI_Gather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, others, 2, MPI_INT, 0, MPI_COMM_WORLD);
}

CASE(scan_of_itself, 2, "the buffers of a scan are one", "error",
     "one buffer to send from and to receive into")
{
    if (wrong)
        MPI_Scan(values, values, 4, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    else
        MPI_Scan(values, others, 4, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
}

CASE(reduce_local_of_itself, 1, "the operands of MPI_Reduce_local overlap", "buffers",
     "a buffer is in use")
{
    MPI_Reduce_local(values, wrong ? values + 1 : others, 4, MPI_INT, MPI_SUM);
}

CASE(result_read_early, 2, "the result of MPI_Iallreduce is sent before it is complete",
     "buffers", "a buffer is in use")
{
    MPI_Request request, send;
    MPI_Iallreduce(values, others, 4, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
    MPI_Isend(wrong ? others : values, 1, MPI_INT, MPI_PROC_NULL, 0, MPI_COMM_WORLD, &send);
    MPI_Wait(&send, MPI_STATUS_IGNORE);
    MPI_Isend(wrong ? others : values, 1, MPI_INT, rank, 0, MPI_COMM_WORLD, &send);
    int got;
    MPI_Recv(&got, 1, MPI_INT, rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Wait(&send, MPI_STATUS_IGNORE);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
}

CASE(collectives_on_two, 2, "two ranks call collectives of two communicators in another order",
     "hang", "the job hangs")
{
    MPI_Comm one, other;
    MPI_Comm_dup(MPI_COMM_WORLD, &one);
    MPI_Comm_dup(MPI_COMM_WORLD, &other);
    if (wrong && rank == 1) {
        MPI_Barrier(other);
        MPI_Barrier(one);
    } else {
        MPI_Barrier(one);
        MPI_Barrier(other);
    }
    MPI_Comm_free(&one);
    MPI_Comm_free(&other);
}
