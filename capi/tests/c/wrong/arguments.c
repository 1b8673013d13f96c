/* Arguments that make no sense. */
#include "wrong.h"

static int value = 1;

CASE(rank_too_large, 2, "a message is sent to a rank that the communicator has not", "error",
     "MPI_Send: rank 2 in a communicator of 2")
{
    if (rank == 0)
        MPI_Send(&value, 1, MPI_INT, wrong ? 2 : 1, 0, MPI_COMM_WORLD);
    else if (!wrong)
        MPI_Recv(&value, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

CASE(rank_negative, 1, "a rank is negative, and not MPI_PROC_NULL", "error", "MPI_Send: rank")
{
    MPI_Send(&value, 1, MPI_INT, wrong ? -7 : MPI_PROC_NULL, 0, MPI_COMM_WORLD);
}

CASE(tag_negative, 1, "a tag is negative", "error", "MPI_ERR_TAG")
{
    MPI_Send(&value, 1, MPI_INT, MPI_PROC_NULL, wrong ? -7 : 7, MPI_COMM_WORLD);
}

CASE(any_tag_sent, 1, "a message is sent with MPI_ANY_TAG", "error", "MPI_ERR_TAG")
{
    MPI_Send(&value, 1, MPI_INT, MPI_PROC_NULL, wrong ? MPI_ANY_TAG : 0, MPI_COMM_WORLD);
}

CASE(any_source_sent, 1, "a message is sent to MPI_ANY_SOURCE", "error", "MPI_ERR_RANK")
{
    MPI_Send(&value, 1, MPI_INT, wrong ? MPI_ANY_SOURCE : MPI_PROC_NULL, 0, MPI_COMM_WORLD);
}

CASE(count_negative, 1, "a count is negative", "error", "MPI_Send: a count of -1")
{
    MPI_Send(&value, wrong ? -1 : 1, MPI_INT, MPI_PROC_NULL, 0, MPI_COMM_WORLD);
}

CASE(null_buffer, 2, "a null pointer is the buffer of some elements", "error", "MPI_ERR_BUFFER")
{
    if (rank == 0)
        MPI_Send(wrong ? NULL : &value, 1, MPI_INT, 1, 0, MPI_COMM_WORLD);
    else
        MPI_Recv(&value, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

CASE(null_communicator, 1, "a message is sent on MPI_COMM_NULL", "error", "MPI_COMM_NULL")
{
    MPI_Comm comm = wrong ? MPI_COMM_NULL : MPI_COMM_SELF;
    MPI_Send(&value, 1, MPI_INT, MPI_PROC_NULL, 0, comm);
}

CASE(freed_communicator, 1, "a communicator is used after it was freed", "error",
     "a handle that is no communicator")
{
    MPI_Comm comm, copy;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    copy = comm;
    if (wrong)
        MPI_Comm_free(&comm);
    MPI_Barrier(copy);
    if (!wrong)
        MPI_Comm_free(&comm);
}

CASE(world_freed, 1, "MPI_COMM_WORLD is freed", "error", "MPI_Comm_free")
{
    MPI_Comm comm = MPI_COMM_WORLD;
    if (!wrong)
        MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_free(&comm);
}

CASE(not_committed, 1, "a datatype is sent that was not committed", "error",
     "a datatype that was not committed")
{
    MPI_Datatype type;
    int values[3] = {0};
    MPI_Type_contiguous(3, MPI_INT, &type);
    if (!wrong)
        MPI_Type_commit(&type);
    MPI_Send(values, 1, type, MPI_PROC_NULL, 0, MPI_COMM_WORLD);
    MPI_Type_free(&type);
}

CASE(null_datatype, 1, "MPI_DATATYPE_NULL is sent", "error", "MPI_DATATYPE_NULL")
{
    MPI_Send(&value, 1, wrong ? MPI_DATATYPE_NULL : MPI_INT, MPI_PROC_NULL, 0, MPI_COMM_WORLD);
}

CASE(freed_datatype, 1, "a datatype is used after it was freed", "error",
     "a handle that is no datatype")
{
    MPI_Datatype type, copy;
    int values[3] = {0};
    MPI_Type_contiguous(3, MPI_INT, &type);
    MPI_Type_commit(&type);
    copy = type;
    if (wrong)
        MPI_Type_free(&type);
    MPI_Send(values, 1, copy, MPI_PROC_NULL, 0, MPI_COMM_WORLD);
    if (!wrong)
        MPI_Type_free(&type);
}

CASE(predefined_type_freed, 1, "a predefined datatype is freed", "error", "MPI_Type_free")
{
    MPI_Datatype type = MPI_INT;
    if (!wrong)
        MPI_Type_dup(MPI_INT, &type);
    MPI_Type_free(&type);
}

CASE(overlap_in_type, 1, "a receive into a datatype that has a byte twice", "error",
     "touch a byte twice cannot be received into")
{
    int values[2] = {0}, from[2] = {1, 2}, lengths[2] = {1, 1};
    int displacements[2] = {0, wrong ? 0 : 1};
    MPI_Datatype type;
    MPI_Request request;
    MPI_Type_indexed(2, lengths, displacements, MPI_INT, &type);
    MPI_Type_commit(&type);
    MPI_Isend(from, 2, MPI_INT, 0, 0, MPI_COMM_SELF, &request);
    MPI_Recv(values, 1, type, 0, 0, MPI_COMM_SELF, MPI_STATUS_IGNORE);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Type_free(&type);
}

CASE(root_too_large, 2, "the root of a broadcast is no rank", "error", "MPI_Bcast")
{
    MPI_Bcast(&value, 1, MPI_INT, wrong ? 2 : 1, MPI_COMM_WORLD);
}

CASE(null_operator, 1, "a reduction has MPI_OP_NULL", "error", "MPI_ERR_OP")
{
    int sum;
    MPI_Allreduce(&value, &sum, 1, MPI_INT, wrong ? MPI_OP_NULL : MPI_SUM, MPI_COMM_WORLD);
}

CASE(operator_of_other_type, 1, "bits of floating-point numbers are combined by MPI_BAND",
     "error", "MPI_Allreduce")
{
    double in = 1, out;
    if (wrong)
        MPI_Allreduce(&in, &out, 1, MPI_DOUBLE, MPI_BAND, MPI_COMM_WORLD);
    else
        MPI_Allreduce(&in, &out, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

CASE(not_in_place_there, 2, "MPI_IN_PLACE is the receive buffer", "error", "MPI_ERR_BUFFER")
{
    int sum = 1;
    if (wrong)
        MPI_Allreduce(&value, MPI_IN_PLACE, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    else
        MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
}

CASE(dims_do_not_fit, 2, "a grid has more places than there are ranks", "error",
     "MPI_Cart_create")
{
    int dims[2] = {2, wrong ? 2 : 1}, periodic[2] = {0, 0};
    MPI_Comm comm;
    MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periodic, 0, &comm);
    MPI_Comm_free(&comm);
}

CASE(rank_twice, 2, "a group has a rank twice", "error", "MPI_Group_incl")
{
    int ranks[2] = {0, wrong ? 0 : 1};
    MPI_Group world, group;
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_incl(world, 2, ranks, &group);
    MPI_Group_free(&group);
    MPI_Group_free(&world);
}

CASE(color_negative, 1, "the colour of a split is negative, and not MPI_UNDEFINED", "error",
     "MPI_Comm_split")
{
    MPI_Comm comm;
    MPI_Comm_split(MPI_COMM_WORLD, wrong ? -3 : 3, 0, &comm);
    MPI_Comm_free(&comm);
}

CASE(truncated, 2, "a message is longer than its receive", "error", "MPI_ERR_TRUNCATE")
{
    int values[8] = {0};
    if (rank == 0)
        MPI_Send(values, 8, MPI_INT, 1, 0, MPI_COMM_WORLD);
    else
        MPI_Recv(values, wrong ? 4 : 8, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

CASE(buffered_without_buffer, 2, "a buffered send has no attached buffer", "error",
     "MPI_Bsend")
{
    static char memory[1000 + MPI_BSEND_OVERHEAD];
    void *had;
    int bytes;
    if (rank == 0) {
        if (!wrong)
            MPI_Buffer_attach(memory, sizeof memory);
        MPI_Bsend(&value, 1, MPI_INT, 1, 0, MPI_COMM_WORLD);
        if (!wrong)
            MPI_Buffer_detach(&had, &bytes);
    } else {
        MPI_Recv(&value, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
}

CASE(buffer_too_small, 2, "an attached buffer is too small for a buffered send", "error",
     "MPI_Bsend")
{
    static char memory[100000 + MPI_BSEND_OVERHEAD];
    static char message[50000];
    void *had;
    int bytes;
    if (rank == 0) {
        MPI_Buffer_attach(memory, wrong ? 1000 : (int)sizeof memory);
        MPI_Bsend(message, sizeof message, MPI_CHAR, 1, 0, MPI_COMM_WORLD);
        MPI_Buffer_detach(&had, &bytes);
    } else {
        MPI_Recv(message, sizeof message, MPI_CHAR, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
}

CASE(statuses_ignored_as_one, 2, "MPI_Waitall has an array of statuses that is too short",
     "silent",
     "how long an array of the program is stands nowhere; a memory checker of the compiler "
     "(-fsanitize=address) finds it")
{
    MPI_Request requests[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    /* There is room for both statuses, so the twin and this one write the same memory. */
    MPI_Status statuses[2];
    MPI_Status *few = wrong ? &statuses[0] : statuses;
    MPI_Waitall(2, requests, few);
}
