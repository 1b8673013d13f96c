/* Messages whose types are not those of their receives. */
#include "wrong.h"

#define MISMATCH "types do not match"

static double numbers[8];

static void cross(MPI_Datatype sent, int sent_count, MPI_Datatype expected, int count)
{
    if (rank == 0)
        MPI_Send(numbers, sent_count, sent, 1, 0, MPI_COMM_WORLD);
    else
        MPI_Recv(numbers, count, expected, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

CASE(integers_as_floats, 2, "integers are received as floating-point numbers", "signature",
     MISMATCH)
{
    cross(MPI_INT, 4, wrong ? MPI_FLOAT : MPI_INT, 4);
}

CASE(signed_as_unsigned, 2, "signed integers are received as unsigned ones", "signature",
     MISMATCH)
{
    cross(MPI_INT, 4, wrong ? MPI_UNSIGNED : MPI_INT, 4);
}

CASE(doubles_as_long, 2, "eight-byte floating-point numbers are received as integers",
     "signature", MISMATCH)
{
    cross(MPI_DOUBLE, 4, wrong ? MPI_LONG : MPI_DOUBLE, 4);
}

CASE(bytes_as_integers, 2, "integers are received as bytes", "signature", MISMATCH)
{
    cross(MPI_INT, 4, wrong ? MPI_BYTE : MPI_INT, wrong ? 16 : 4);
}

CASE(other_order, 2, "the members of a structure are received in another order", "signature",
     MISMATCH)
{
    int lengths[2] = {1, 1};
    MPI_Aint displacements[2] = {0, 8};
    MPI_Datatype members[2] = {MPI_INT, MPI_FLOAT}, others[2] = {MPI_FLOAT, MPI_INT};
    MPI_Datatype sent, expected;
    MPI_Type_create_struct(2, lengths, displacements, members, &sent);
    MPI_Type_create_struct(2, lengths, displacements, wrong ? others : members, &expected);
    MPI_Type_commit(&sent);
    MPI_Type_commit(&expected);
    cross(sent, 1, expected, 1);
    MPI_Type_free(&sent);
    MPI_Type_free(&expected);
}

CASE(two_floats_as_a_double, 2, "two short floating-point numbers are received as a long one",
     "signature", MISMATCH)
{
    cross(MPI_FLOAT, 8, wrong ? MPI_DOUBLE : MPI_FLOAT, wrong ? 4 : 8);
}

CASE(pair_as_parts, 2, "a pair of MPI_DOUBLE_INT is received as two of MPI_DOUBLE", "signature",
     MISMATCH)
{
    cross(MPI_DOUBLE_INT, 1, wrong ? MPI_DOUBLE : MPI_DOUBLE_INT, wrong ? 2 : 1);
}

CASE(in_a_nonblocking_receive, 2, "a nonblocking receive has another type", "signature",
     MISMATCH)
{
    MPI_Request request;
    if (rank == 0) {
        MPI_Send(numbers, 2, MPI_DOUBLE, 1, 0, MPI_COMM_WORLD);
    } else {
        MPI_Irecv(numbers, 2, wrong ? MPI_LONG : MPI_DOUBLE, 0, 0, MPI_COMM_WORLD, &request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
}

CASE(packed_as_floats, 2, "what was packed is received as other numbers", "silent",
     "MPI_PACKED matches every type: what was packed is not told to the receiver")
{
    int position = 0;
    char packed[64];
    if (rank == 0) {
        MPI_Pack(numbers, 4, MPI_DOUBLE, packed, sizeof packed, &position, MPI_COMM_WORLD);
        MPI_Send(packed, position, MPI_PACKED, 1, 0, MPI_COMM_WORLD);
    } else if (wrong) {
        MPI_Recv(packed, 8, MPI_FLOAT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        MPI_Recv(packed, sizeof packed, MPI_PACKED, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Unpack(packed, sizeof packed, &position, numbers, 4, MPI_DOUBLE, MPI_COMM_WORLD);
    }
}

CASE(wrong_type_of_memory, 2, "both ranks say MPI_INT of memory that has doubles", "silent",
     "the types of the program's variables are known to the compiler alone")
{
    cross(wrong ? MPI_INT : MPI_DOUBLE, 4, wrong ? MPI_INT : MPI_DOUBLE, 4);
}

CASE(sum_of_bytes, 2, "bytes are added by MPI_SUM, which the standard has not", "collectives",
     "MPI_SUM of MPI_BYTE")
{
    unsigned char in = 1, out = 0;
    if (wrong)
        MPI_Allreduce(&in, &out, 1, MPI_BYTE, MPI_SUM, MPI_COMM_WORLD);
    else
        MPI_Allreduce(&in, &out, 1, MPI_UNSIGNED_CHAR, MPI_SUM, MPI_COMM_WORLD);
}
