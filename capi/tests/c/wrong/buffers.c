/* Memory that an operation has, and memory that is not there. */
#include "wrong.h"
#include <sys/mman.h>

#define IN_USE "a buffer is in use"

static int values[1024], others[1024];

CASE(written_while_sent, 2, "a buffer is written between MPI_Isend and MPI_Wait", "buffers",
     "a buffer has changed")
{
    MPI_Request request;
    if (rank == 0) {
        MPI_Isend(values, 4, MPI_INT, 1, 0, MPI_COMM_WORLD, &request);
        if (wrong)
            values[2] = 7;
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        values[2] = 7;
    } else {
        MPI_Recv(values, 4, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
}

CASE(written_while_sent_long, 2, "a long message is written before its send is complete",
     "buffers", "a buffer has changed")
{
    static int many[1 << 18];
    MPI_Request request;
    if (rank == 0) {
        MPI_Isend(many, 1 << 18, MPI_INT, 1, 0, MPI_COMM_WORLD, &request);
        if (wrong)
            many[1 << 17] = 7;
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    } else {
        MPI_Recv(many, 1 << 18, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
}

CASE(received_while_sent, 2, "a receive writes a buffer whose send is not complete", "buffers",
     IN_USE)
{
    MPI_Request request;
    if (rank == 0) {
        MPI_Isend(values, 4, MPI_INT, 1, 0, MPI_COMM_WORLD, &request);
        if (!wrong)
            MPI_Wait(&request, MPI_STATUS_IGNORE);
        MPI_Recv(values, 4, MPI_INT, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    } else {
        MPI_Recv(values, 4, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(values, 4, MPI_INT, 0, 0, MPI_COMM_WORLD);
    }
}

CASE(two_receives, 2, "two receives have the same buffer at the same time", "buffers", IN_USE)
{
    MPI_Request requests[2];
    if (rank == 0) {
        MPI_Irecv(values, 4, MPI_INT, 1, 0, MPI_COMM_WORLD, &requests[0]);
        MPI_Irecv(wrong ? values : others, 4, MPI_INT, 1, 1, MPI_COMM_WORLD, &requests[1]);
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    } else {
        MPI_Send(values, 4, MPI_INT, 0, 0, MPI_COMM_WORLD);
        MPI_Send(values, 4, MPI_INT, 0, 1, MPI_COMM_WORLD);
    }
}

CASE(receives_overlap, 2, "two receives overlap in a few bytes", "buffers", IN_USE)
{
    MPI_Request requests[2];
    if (rank == 0) {
        MPI_Irecv(values, 4, MPI_INT, 1, 0, MPI_COMM_WORLD, &requests[0]);
        MPI_Irecv(wrong ? values + 3 : values + 4, 4, MPI_INT, 1, 1, MPI_COMM_WORLD,
                  &requests[1]);
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    } else {
        MPI_Send(values, 4, MPI_INT, 0, 0, MPI_COMM_WORLD);
        MPI_Send(values, 4, MPI_INT, 0, 1, MPI_COMM_WORLD);
    }
}

CASE(sent_while_received, 2, "a buffer is sent into which a receive is open", "buffers", IN_USE)
{
    MPI_Request request;
    if (rank == 0) {
        MPI_Irecv(values, 4, MPI_INT, 1, 0, MPI_COMM_WORLD, &request);
        if (!wrong)
            MPI_Wait(&request, MPI_STATUS_IGNORE);
        MPI_Send(values, 4, MPI_INT, 1, 0, MPI_COMM_WORLD);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    } else {
        MPI_Send(values, 4, MPI_INT, 0, 0, MPI_COMM_WORLD);
        MPI_Recv(values, 4, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
}

CASE(reduced_while_received, 2, "a buffer is reduced into which a receive is open", "buffers",
     IN_USE)
{
    MPI_Request request = MPI_REQUEST_NULL;
    if (rank == 0)
        MPI_Irecv(values, 4, MPI_INT, 1, 0, MPI_COMM_WORLD, &request);
    else
        MPI_Send(others, 4, MPI_INT, 0, 0, MPI_COMM_WORLD);
    if (!wrong)
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Allreduce(values, others, 4, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
}

CASE(sendrecv_of_one, 2, "the buffers of MPI_Sendrecv are one", "buffers", IN_USE)
{
    int other = 1 - rank;
    MPI_Sendrecv(values, 4, MPI_INT, other, 0, wrong ? values : others, 4, MPI_INT, other, 0,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

CASE(started_on_one, 2, "two persistent receives with the same buffer are started", "buffers",
     IN_USE)
{
    MPI_Request requests[2];
    if (rank == 0) {
        MPI_Recv_init(values, 4, MPI_INT, 1, 0, MPI_COMM_WORLD, &requests[0]);
        MPI_Recv_init(wrong ? values : others, 4, MPI_INT, 1, 1, MPI_COMM_WORLD, &requests[1]);
        MPI_Startall(2, requests);
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
        MPI_Request_free(&requests[0]);
        MPI_Request_free(&requests[1]);
    } else {
        MPI_Send(values, 4, MPI_INT, 0, 0, MPI_COMM_WORLD);
        MPI_Send(values, 4, MPI_INT, 0, 1, MPI_COMM_WORLD);
    }
}

CASE(broadcast_written, 2, "a buffer is written between MPI_Ibcast and MPI_Wait", "buffers",
     "a buffer has changed")
{
    MPI_Request request;
    MPI_Ibcast(values, 4, MPI_INT, 0, MPI_COMM_WORLD, &request);
    if (wrong && rank == 0)
        values[0] = 8;
    MPI_Wait(&request, MPI_STATUS_IGNORE);
}

/* Memory with nothing behind it. */
static int *pages(size_t bytes)
{
    char *all = mmap(NULL, bytes + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(all + bytes, 4096);
    return (int *)all;
}

CASE(sent_beyond_memory, 2, "more is sent than the program has memory", "buffers",
     "a buffer is not mapped to its end")
{
    if (rank == 0)
        MPI_Send(pages(4096), wrong ? 4096 : 1024, MPI_INT, 1, 0, MPI_COMM_WORLD);
    else
        MPI_Recv(pages(16384), 4096, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

CASE(received_beyond_memory, 2, "a receive is longer than the program has memory", "buffers",
     "a buffer is not mapped to its end")
{
    if (rank == 0)
        MPI_Send(pages(16384), wrong ? 4096 : 1024, MPI_INT, 1, 0, MPI_COMM_WORLD);
    else
        MPI_Recv(pages(4096), wrong ? 4096 : 1024, MPI_INT, 0, 0, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
}

CASE(gathered_beyond_memory, 2, "a gather has room for one rank", "buffers",
     "a buffer is not mapped to its end")
{
    int *room = pages(wrong ? 4096 : 8192);
    MPI_Allgather(values, 1024, MPI_INT, room, 1024, MPI_INT, MPI_COMM_WORLD);
}

CASE(freed_memory, 1, "memory is sent that was given back", "buffers",
     "a buffer is not mapped to its end")
{
    int *memory = pages(1 << 20), got[4];
    if (wrong)
        munmap(memory, 1 << 20);
    MPI_Sendrecv(memory, 4, MPI_INT, 0, 0, got, 4, MPI_INT, 0, 0, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
}

CASE(wild_pointer, 1, "a number is sent in place of its address", "buffers",
     "a buffer is not mapped to its end")
{
    int value = 4711, got;
    void *buffer = wrong ? (void *)(size_t)value : &value;
    MPI_Sendrecv(buffer, 1, MPI_INT, 0, 0, &got, 1, MPI_INT, 0, 0, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
}

CASE(received_into_constant, 1, "a message is received into memory that is read only", "buffers",
     "a buffer cannot be written")
{
    static const int constant[4096] = {1};
    int value = 4711, got;
    MPI_Sendrecv(&value, 1, MPI_INT, 0, 0, wrong ? (int *)&constant[2048] : &got, 1, MPI_INT, 0, 0,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

/* Overruns no variable of anybody else: it would not come back. */
__attribute__((noinline)) static void exchange(int n)
{
    volatile int few[4] = {0};
    int from[64] = {0};
    MPI_Sendrecv(from, n, MPI_INT, 0, 0, (void *)few, n, MPI_INT, 0, 0, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
}

CASE(beyond_function, 1, "a receive overruns the variables of the function that calls it",
     "buffers", "a buffer overruns the variables of its function")
{
    exchange(wrong ? 64 : 4);
}

CASE(short_of_array, 1, "a receive is longer than its array, and hits the next one", "silent",
     "where an array of the program ends stands nowhere; a memory checker of the compiler "
     "(-fsanitize=address) finds it")
{
    struct {
        int few[4], next[4];
    } memory = {{0}, {0}};
    int from[8] = {0};
    MPI_Sendrecv(from, wrong ? 8 : 4, MPI_INT, 0, 0, memory.few, wrong ? 8 : 4, MPI_INT, 0, 0,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

CASE(read_before_complete, 2, "the program reads a receive's buffer before it is complete",
     "silent", "a load of the program reaches no library; MPI_Test would have said so")
{
    MPI_Request request;
    int sum = 0;
    if (rank == 0) {
        MPI_Irecv(values, 4, MPI_INT, 1, 0, MPI_COMM_WORLD, &request);
        if (wrong)
            sum += values[0];
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        sum += values[0];
    } else {
        MPI_Send(values, 4, MPI_INT, 0, 0, MPI_COMM_WORLD);
    }
    if (sum)
        abort();
}

static int *combined;

/* A reduction function that makes calls of its own, and receives. */
static void receive_and_add(void *in, void *inout, int *count, MPI_Datatype *type)
{
    int bytes, value = 1, got;
    (void)count;
    MPI_Type_size(*type, &bytes);
    MPI_Sendrecv(&value, 1, MPI_INT, 0, 0, wrong ? combined : &got, 1, MPI_INT, 0, 0,
                 MPI_COMM_SELF, MPI_STATUS_IGNORE);
    *(int *)inout += *(int *)in;
}

CASE(used_in_function, 1, "a reduction function receives into what its call combines", "buffers",
     "a buffer is in use by two transfers")
{
    int in = 1, inout = 2;
    MPI_Op add;
    combined = &in;
    MPI_Op_create(receive_and_add, 1, &add);
    MPI_Reduce_local(&in, &inout, 1, MPI_INT, add);
    MPI_Op_free(&add);
}
