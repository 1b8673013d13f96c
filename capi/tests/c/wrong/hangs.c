/* Ranks that wait for each other, or for nobody. */
#include "wrong.h"

#define HANGS "the job hangs"
#define MANY (1 << 20)

CASE(receives_first, 2, "both ranks receive before they send", "hang", HANGS)
{
    int mine = rank, other = 1 - rank, theirs;
    if (wrong || rank == 0) {
        MPI_Recv(&theirs, 1, MPI_INT, other, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(&mine, 1, MPI_INT, other, 0, MPI_COMM_WORLD);
    } else {
        MPI_Send(&mine, 1, MPI_INT, other, 0, MPI_COMM_WORLD);
        MPI_Recv(&theirs, 1, MPI_INT, other, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
}

CASE(sends_first, 2, "both ranks send a long message before they receive", "hang", HANGS)
{
    static double mine[MANY], theirs[MANY];
    int other = 1 - rank;
    if (wrong) {
        MPI_Send(mine, MANY, MPI_DOUBLE, other, 0, MPI_COMM_WORLD);
        MPI_Recv(theirs, MANY, MPI_DOUBLE, other, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        MPI_Sendrecv(mine, MANY, MPI_DOUBLE, other, 0, theirs, MANY, MPI_DOUBLE, other, 0,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
}

CASE(synchronous_to_self, 1, "a rank sends to itself in synchronous mode and receives later",
     "hang", HANGS)
{
    int mine = 1, theirs;
    MPI_Request request;
    if (wrong) {
        MPI_Ssend(&mine, 1, MPI_INT, 0, 0, MPI_COMM_WORLD);
        MPI_Recv(&theirs, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        MPI_Irecv(&theirs, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, &request);
        MPI_Ssend(&mine, 1, MPI_INT, 0, 0, MPI_COMM_WORLD);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
}

CASE(other_tag, 2, "the receive has another tag than the message", "hang", HANGS)
{
    int value = 1;
    if (rank == 0) {
        MPI_Send(&value, 1, MPI_INT, 1, 4, MPI_COMM_WORLD);
        MPI_Barrier(MPI_COMM_WORLD);
    } else {
        MPI_Recv(&value, 1, MPI_INT, 0, wrong ? 5 : 4, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Barrier(MPI_COMM_WORLD);
    }
}

CASE(other_communicator, 2, "the receive is on another communicator than the message", "hang",
     HANGS)
{
    int value = 1;
    MPI_Comm copy;
    MPI_Comm_dup(MPI_COMM_WORLD, &copy);
    if (rank == 0)
        MPI_Send(&value, 1, MPI_INT, 1, 0, copy);
    else
        MPI_Recv(&value, 1, MPI_INT, 0, 0, wrong ? MPI_COMM_WORLD : copy, MPI_STATUS_IGNORE);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Comm_free(&copy);
}

CASE(waits_for_nobody, 2, "a request is waited for whose message nobody sends", "hang", HANGS)
{
    int value = 1;
    MPI_Request request = MPI_REQUEST_NULL;
    if (rank == 1)
        MPI_Irecv(&value, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, &request);
    if (rank == 0 && !wrong)
        MPI_Send(&value, 1, MPI_INT, 1, 0, MPI_COMM_WORLD);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Barrier(MPI_COMM_WORLD);
}

CASE(one_message_too_few, 2, "one rank receives once more than the other sends", "hang", HANGS)
{
    int value = 1;
    for (int i = 0; i < 3; i++) {
        if (rank == 0 && (i < 2 || !wrong))
            MPI_Send(&value, 1, MPI_INT, 1, 0, MPI_COMM_WORLD);
        if (rank == 1)
            MPI_Recv(&value, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

CASE(cycle_of_three, 3, "three ranks wait in a cycle", "hang", "cycle: 0 ->")
{
    int value = 1, next = (rank + 1) % 3, previous = (rank + 2) % 3;
    if (wrong) {
        MPI_Recv(&value, 1, MPI_INT, previous, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(&value, 1, MPI_INT, next, 0, MPI_COMM_WORLD);
    } else {
        MPI_Sendrecv_replace(&value, 1, MPI_INT, next, 0, previous, 0, MPI_COMM_WORLD,
                             MPI_STATUS_IGNORE);
    }
}

CASE(probe_of_nothing, 2, "a rank probes for a message that nobody sends", "hang", HANGS)
{
    int value = 1;
    if (rank == 0) {
        if (!wrong)
            MPI_Send(&value, 1, MPI_INT, 1, 0, MPI_COMM_WORLD);
    } else {
        MPI_Probe(0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Recv(&value, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

CASE(barrier_beside_receive, 2, "one rank is in a barrier, the other receives from it", "hang",
     HANGS)
{
    int value = 1;
    if (rank == 0) {
        if (!wrong)
            MPI_Send(&value, 1, MPI_INT, 1, 0, MPI_COMM_WORLD);
        MPI_Barrier(MPI_COMM_WORLD);
    } else {
        MPI_Recv(&value, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Barrier(MPI_COMM_WORLD);
    }
}

CASE(wildcard_takes_it, 3, "a receive from any source takes the message that another one needs",
     "hang", HANGS)
{
    int value = 1;
    if (rank == 0) {
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Recv(&value, 1, MPI_INT, wrong ? MPI_ANY_SOURCE : 2, 0, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
        MPI_Recv(&value, 1, MPI_INT, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else if (rank == 1) {
        MPI_Send(&value, 1, MPI_INT, 0, 0, MPI_COMM_WORLD);
        MPI_Barrier(MPI_COMM_WORLD);
    } else {
        MPI_Barrier(MPI_COMM_WORLD);
        if (!wrong)
            MPI_Send(&value, 1, MPI_INT, 0, 0, MPI_COMM_WORLD);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

CASE(collective_in_a_branch, 2, "only one rank calls a barrier", "hang", HANGS)
{
    if (rank == 0 || !wrong)
        MPI_Barrier(MPI_COMM_WORLD);
    int value = 0;
    if (rank == 1)
        MPI_Recv(&value, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    else
        MPI_Send(&value, 1, MPI_INT, 1, 0, MPI_COMM_WORLD);
}
