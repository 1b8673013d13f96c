/* Datatypes that do not begin at their origin: true lower bounds above and below zero,
 * negative extents. Each goes through every kind of transfer; what arrives is compared,
 * byte for byte, with what MPI_Pack says, and nothing else is touched. */
#include "check.h"

#define ROOM 4096
#define MIDDLE 2048
#define KINDS 8
#define COUNT 4

static unsigned char from[ROOM], to[ROOM], wanted[ROOM];

static MPI_Datatype make(int kind)
{
    MPI_Datatype type, inner;
    int one[1] = {1}, two[1] = {2}, back[1] = {-3};
    int lengths[2] = {2, 1}, places[2] = {5, 1};
    int sizes[2] = {4, 6}, part[2] = {2, 3}, start[2] = {1, 2};
    MPI_Aint bytes[2] = {-8, 12};
    switch (kind) {
    case 0:
        MPI_Type_indexed(1, one, two, MPI_INT, &type);
        break;
    case 1:
        MPI_Type_create_subarray(2, sizes, part, start, MPI_ORDER_C, MPI_INT, &type);
        break;
    case 2:
        MPI_Type_indexed(1, one, back, MPI_INT, &type);
        break;
    case 3:
        MPI_Type_create_hindexed(2, lengths, bytes, MPI_INT, &type);
        break;
    case 4:
        MPI_Type_contiguous(2, MPI_INT, &inner);
        MPI_Type_create_resized(inner, -4, 16, &type);
        MPI_Type_free(&inner);
        break;
    case 5:
        MPI_Type_indexed(2, lengths, places, MPI_INT, &inner);
        MPI_Type_create_resized(inner, 0, 40, &type);
        MPI_Type_free(&inner);
        break;
    case 6:
        MPI_Type_vector(3, 1, -2, MPI_INT, &type);
        break;
    default:
        MPI_Type_indexed(1, one, two, MPI_INT, &inner);
        MPI_Type_create_resized(inner, 0, -16, &type);
        MPI_Type_free(&inner);
        break;
    }
    MPI_Type_commit(&type);
    return type;
}

static void fill(void)
{
    for (int i = 0; i < ROOM; i++) {
        from[i] = (unsigned char)(i * 7 + 1);
        to[i] = wanted[i] = 0xee;
    }
}

/* What `n` instances of `type` at the middle should have received. */
static void expect(MPI_Datatype type, int n, MPI_Aint at)
{
    unsigned char packed[ROOM];
    int position = 0, end;
    MPI_Pack(from + MIDDLE, n, type, packed, ROOM, &position, MPI_COMM_WORLD);
    end = position;
    position = 0;
    MPI_Unpack(packed, end, &position, wanted + MIDDLE + at, n, type, MPI_COMM_WORLD);
}

static void compare(const char *call, int kind)
{
    for (int i = 0; i < ROOM; i++) {
        if (to[i] != wanted[i]) {
            fprintf(stderr, "%s, type %d: byte %d is %d, not %d\n", call, kind, i - MIDDLE,
                    to[i], wanted[i]);
            MPI_Abort(MPI_COMM_WORLD, 9);
        }
    }
}

static void partitions(MPI_Datatype type, int kind, int sends, int receives)
{
    MPI_Request requests[2];
    int next = (rank + 1) % size, previous = (rank + size - 1) % size;
    fill();
    expect(type, COUNT, 0);
    CHECK(MPI_Psend_init(from + MIDDLE, sends, COUNT / sends, type, next, 3, MPI_COMM_WORLD,
                         MPI_INFO_NULL, &requests[0]) == MPI_SUCCESS);
    CHECK(MPI_Precv_init(to + MIDDLE, receives, COUNT / receives, type, previous, 3,
                         MPI_COMM_WORLD, MPI_INFO_NULL, &requests[1]) == MPI_SUCCESS);
    for (int round = 0; round < 2; round++) {
        memset(to, 0xee, sizeof to);
        MPI_Startall(2, requests);
        for (int i = sends - 1; i >= 0; i--)
            MPI_Pready(i, requests[0]);
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
        compare("partitions", kind);
    }
    MPI_Request_free(&requests[0]);
    MPI_Request_free(&requests[1]);
}

static void transfers(MPI_Datatype type, int kind)
{
    int next = (rank + 1) % size, previous = (rank + size - 1) % size;
    MPI_Request requests[2];
    fill();
    expect(type, COUNT, 0);
    MPI_Sendrecv(from + MIDDLE, COUNT, type, next, 1, to + MIDDLE, COUNT, type, previous, 1,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    compare("MPI_Sendrecv", kind);

    unsigned char own = (unsigned char)rank, other = (unsigned char)previous;
    memset(to, own, sizeof to);
    memset(from, other, sizeof from);
    memset(wanted, own, sizeof wanted);
    expect(type, COUNT, 0);
    MPI_Sendrecv_replace(to + MIDDLE, COUNT, type, next, 1, previous, 1, MPI_COMM_WORLD,
                         MPI_STATUS_IGNORE);
    compare("MPI_Sendrecv_replace", kind);
    fill();
    expect(type, COUNT, 0);

    memset(to, 0xee, sizeof to);
    MPI_Send_init(from + MIDDLE, COUNT, type, next, 2, MPI_COMM_WORLD, &requests[0]);
    MPI_Recv_init(to + MIDDLE, COUNT, type, previous, 2, MPI_COMM_WORLD, &requests[1]);
    MPI_Startall(2, requests);
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    MPI_Request_free(&requests[0]);
    MPI_Request_free(&requests[1]);
    compare("persistent", kind);

    for (int sends = 1; sends <= COUNT; sends *= 2)
        for (int receives = 1; receives <= COUNT; receives *= 2)
            partitions(type, kind, sends, receives);
}

static void collectives(MPI_Datatype type, int kind)
{
    MPI_Aint lb, extent;
    MPI_Type_get_extent(type, &lb, &extent);
    fill();
    expect(type, COUNT, 0);
    if (rank == 0) {
        memcpy(to, from, sizeof to);
        memcpy(wanted, from, sizeof to);
    }
    MPI_Bcast(to + MIDDLE, COUNT, type, 0, MPI_COMM_WORLD);
    compare("MPI_Bcast", kind);

    fill();
    for (int i = 0; i < size; i++)
        expect(type, 1, i * extent);
    MPI_Allgather(from + MIDDLE, 1, type, to + MIDDLE, 1, type, MPI_COMM_WORLD);
    compare("MPI_Allgather", kind);

    fill();
    int counts[8], places[8];
    for (int i = 0; i < size; i++) {
        counts[i] = 1;
        places[i] = size - 1 - i;
        expect(type, 1, places[i] * extent);
    }
    MPI_Allgatherv(from + MIDDLE, 1, type, to + MIDDLE, counts, places, type, MPI_COMM_WORLD);
    compare("MPI_Allgatherv", kind);

    fill();
    int dims[1] = {size}, periodic[1] = {1};
    MPI_Comm ring;
    MPI_Cart_create(MPI_COMM_WORLD, 1, dims, periodic, 0, &ring);
    expect(type, 1, 0);
    expect(type, 1, extent);
    MPI_Neighbor_allgather(from + MIDDLE, 1, type, to + MIDDLE, 1, type, ring);
    compare("MPI_Neighbor_allgather", kind);
    MPI_Comm_free(&ring);
}

int main(int argc, char **argv)
{
    begin(&argc, &argv);
    for (int kind = 0; kind < KINDS; kind++) {
        MPI_Datatype type = make(kind);
        transfers(type, kind);
        collectives(type, kind);
        MPI_Type_free(&type);
    }
    return end();
}
