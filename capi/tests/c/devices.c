/* Buffers in a device's memory, wherever MPI takes a buffer. */
#include "driver.h"

#define N 1024

static int host[N], got[N];
static int *device, *other;

static void number(int from) {
    for (int i = 0; i < N; i++) host[i] = from + i;
}

static void is_numbered(void *memory, int n, int from) {
    memset(got, 0, sizeof got);
    fetch(got, memory, n * sizeof(int));
    for (int i = 0; i < n; i++) CHECK(got[i] == from + i);
}

static void clear(void *memory) {
    memset(got, 0xff, sizeof got);
    fill(memory, got, sizeof got);
}

static void messages(void) {
    int peer = size - 1 - rank, n;
    MPI_Status status;
    /* From device to device, and between device and host. */
    for (int bytes = 1; bytes <= N; bytes *= 4) {
        number(1000 * rank);
        fill(device, host, sizeof host);
        clear(other);
        OK(MPI_Sendrecv(device, bytes, MPI_INT, peer, 1, other, N, MPI_INT, peer, 1,
                        MPI_COMM_WORLD, &status));
        OK(MPI_Get_count(&status, MPI_INT, &n));
        CHECK(n == bytes);
        is_numbered(other, bytes, 1000 * peer);
    }
    if (rank == 0) {
        OK(MPI_Send(device, N, MPI_INT, 1, 2, MPI_COMM_WORLD));
        OK(MPI_Ssend(host, N, MPI_INT, 1, 3, MPI_COMM_WORLD));
    } else if (rank == 1) {
        OK(MPI_Recv(host, N, MPI_INT, 0, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        for (int i = 0; i < N; i++) CHECK(host[i] == i);
        clear(device);
        OK(MPI_Recv(device, N, MPI_INT, 0, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        is_numbered(device, N, 0);
    }
}

/* Eight partitions at one end, four at the other, of every other element and of a run. */
static void partitions(void) {
    int peer = size - 1 - rank, there = 0;
    MPI_Datatype pairs;
    MPI_Request send, recv;
    OK(MPI_Type_create_resized(MPI_INT, 0, 2 * sizeof(int), &pairs));
    OK(MPI_Type_commit(&pairs));
    OK(MPI_Psend_init(device, 8, N / 16, pairs, peer, 4, MPI_COMM_WORLD, MPI_INFO_NULL, &send));
    OK(MPI_Precv_init(other, 4, N / 8, MPI_INT, peer, 4, MPI_COMM_WORLD, MPI_INFO_NULL, &recv));
    for (int round = 0; round < 3; round++) {
        number(7000 * rank + round);
        fill(device, host, sizeof host);
        clear(other);
        OK(MPI_Start(&recv));
        OK(MPI_Start(&send));
        OK(MPI_Pready(5, send));
        OK(MPI_Pready_range(0, 3, send));
        while (!there) OK(MPI_Parrived(recv, 1, &there));
        /* This partition alone: others may be on their way. */
        fetch(got, other + N / 8, N / 8 * sizeof(int));
        for (int i = 0; i < N / 8; i++)
            CHECK(got[i] == 7000 * peer + round + 2 * (N / 8 + i));
        int rest[] = {7, 4, 6};
        OK(MPI_Pready_list(3, rest, send));
        OK(MPI_Wait(&recv, MPI_STATUS_IGNORE));
        OK(MPI_Wait(&send, MPI_STATUS_IGNORE));
        fetch(got, other, N * sizeof(int));
        for (int i = 0; i < N; i++)
            CHECK(got[i] == (i < N / 2 ? 7000 * peer + round + 2 * i : -1));
        there = 0;
    }
    OK(MPI_Request_free(&send));
    OK(MPI_Request_free(&recv));
    OK(MPI_Type_free(&pairs));
}

/* Every fourth element, into a run, and the other way round; requests of all kinds. */
static void layouts(void) {
    int peer = size - 1 - rank;
    MPI_Datatype column;
    MPI_Request both[2];
    OK(MPI_Type_vector(N / 4, 1, 4, MPI_INT, &column));
    OK(MPI_Type_commit(&column));
    number(5000 * rank);
    fill(device, host, sizeof host);
    clear(other);
    OK(MPI_Irecv(other, N / 4, MPI_INT, peer, 1, MPI_COMM_WORLD, &both[0]));
    OK(MPI_Isend(device + 1, 1, column, peer, 1, MPI_COMM_WORLD, &both[1]));
    OK(MPI_Waitall(2, both, MPI_STATUSES_IGNORE));
    fetch(got, other, sizeof got);
    for (int i = 0; i < N / 4; i++) CHECK(got[i] == 5000 * peer + 4 * i + 1);

    clear(other);
    OK(MPI_Recv_init(other, 1, column, peer, 2, MPI_COMM_WORLD, &both[0]));
    OK(MPI_Send_init(device, N / 4, MPI_INT, peer, 2, MPI_COMM_WORLD, &both[1]));
    for (int round = 0; round < 3; round++) {
        number(5000 * rank + round);
        fill(device, host, sizeof host);
        OK(MPI_Startall(2, both));
        OK(MPI_Waitall(2, both, MPI_STATUSES_IGNORE));
        fetch(got, other, sizeof got);
        for (int i = 0; i < N; i++)
            CHECK(got[i] == (i % 4 ? -1 : 5000 * peer + round + i / 4));
    }
    OK(MPI_Request_free(&both[0]));
    OK(MPI_Request_free(&both[1]));

    /* Addresses of the device in the type. */
    MPI_Datatype absolute;
    MPI_Aint at[2];
    int lengths[2] = {3, 2};
    OK(MPI_Get_address(device, &at[0]));
    OK(MPI_Get_address(device + 100, &at[1]));
    OK(MPI_Type_create_hindexed(2, lengths, at, MPI_INT, &absolute));
    OK(MPI_Type_commit(&absolute));
    number(rank);
    fill(device, host, sizeof host);
    OK(MPI_Sendrecv(MPI_BOTTOM, 1, absolute, peer, 3, got, 5, MPI_INT, peer, 3,
                    MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    for (int i = 0; i < 5; i++) CHECK(got[i] == peer + (i < 3 ? i : 97 + i));
    OK(MPI_Type_free(&absolute));
    OK(MPI_Type_free(&column));
}

static void collectives(void) {
    number(rank);
    fill(device, host, sizeof host);
    clear(other);
    OK(MPI_Allreduce(device, other, N, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
    fetch(got, other, sizeof got);
    for (int i = 0; i < N; i++) CHECK(got[i] == size * i + size * (size - 1) / 2);
    OK(MPI_Allreduce(MPI_IN_PLACE, device, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD));
    fetch(got, device, sizeof got);
    CHECK(got[0] == size - 1 && got[1] == rank + 1);

    number(100);
    if (rank == 0) fill(device, host, sizeof host);
    else clear(device);
    OK(MPI_Bcast(device, N, MPI_INT, 0, MPI_COMM_WORLD));
    is_numbered(device, N, 100);

    number(10 * rank);
    fill(device, host, sizeof host);
    MPI_Request request;
    OK(MPI_Iallgather(device, 10, MPI_INT, other, 10, MPI_INT, MPI_COMM_WORLD, &request));
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    is_numbered(other, 10 * size, 0);

    /* In place, a type for each block. */
    int counts[2] = {3, 3}, places[2] = {0, 40};
    MPI_Datatype types[2] = {MPI_INT, MPI_INT};
    number(1000 * rank);
    fill(device, host, sizeof host);
    OK(MPI_Alltoallw(MPI_IN_PLACE, counts, places, types, device, counts, places, types,
                     MPI_COMM_WORLD));
    fetch(got, device, sizeof got);
    for (int r = 0; r < size; r++)
        for (int i = 0; i < 3; i++) CHECK(got[10 * r + i] == 1000 * r + 10 * rank + i);
}

static void local(void) {
    int at = 0, bytes;
    MPI_Datatype pairs;
    OK(MPI_Type_vector(10, 2, 5, MPI_INT, &pairs));
    OK(MPI_Type_commit(&pairs));
    OK(MPI_Pack_size(1, pairs, MPI_COMM_WORLD, &bytes));
    number(7);
    fill(device, host, sizeof host);
    clear(other);
    /* From device to device, device to host, host to device. */
    OK(MPI_Pack(device, 1, pairs, other, 2 * bytes, &at, MPI_COMM_WORLD));
    OK(MPI_Pack(host, 1, pairs, other, 2 * bytes, &at, MPI_COMM_WORLD));
    CHECK(at == 2 * (int)sizeof(int) * 20);
    FAILS(MPI_Pack(host, 1, pairs, other, at + 4, &at, MPI_COMM_WORLD), MPI_ERR_ARG);
    fetch(got, other, sizeof got);
    for (int i = 0; i < 40; i++) CHECK(got[i] == 7 + i % 20 / 2 * 5 + i % 2);
    at = 80;
    clear(device);
    OK(MPI_Unpack(other, 2 * bytes, &at, device, 1, pairs, MPI_COMM_WORLD));
    fetch(got, device, sizeof got);
    for (int i = 0; i < 47; i++) CHECK(got[i] == (i % 5 < 2 ? 7 + i : -1));

    MPI_Aint position = 0;
    OK(MPI_Pack_external("external32", device, 1, pairs, other, sizeof host, &position));
    clear(device);
    position = 0;
    OK(MPI_Unpack_external("external32", other, sizeof host, &position, device, 1, pairs));
    CHECK(position == 80);
    fetch(got, device, sizeof got);
    for (int i = 0; i < 47; i++) CHECK(got[i] == (i % 5 < 2 ? 7 + i : -1));
    OK(MPI_Type_free(&pairs));

    number(1);
    fill(device, host, sizeof host);
    fill(other, host, sizeof host);
    OK(MPI_Reduce_local(device, other, N, MPI_INT, MPI_PROD));
    OK(MPI_Reduce_local(host, other, 1, MPI_INT, MPI_SUM));
    fetch(got, other, sizeof got);
    for (int i = 0; i < N; i++) CHECK(got[i] == (i ? (1 + i) * (1 + i) : 2));
}

/* Memory that both see, what lies behind an allocation, and what was freed. */
static void borders(void) {
    device_address at = 0;
    CHECK(cuda.managed(&at, 64, 1) == 0);
    int *managed = (int *)at, peer = size - 1 - rank;
    fill(managed, &rank, sizeof rank);
    OK(MPI_Sendrecv_replace(managed, 1, MPI_INT, peer, 4, peer, 4, MPI_COMM_WORLD,
                            MPI_STATUS_IGNORE));
    fetch(got, managed, sizeof(int));
    CHECK(got[0] == peer);
    CHECK(cuda.release(at) == 0);
    CHECK(MPI_Send(device, N + 1, MPI_INT, peer, 5, MPI_COMM_WORLD) != MPI_SUCCESS);
}

/* A window on the device, used from device and host, and one on the host used from the device. */
static void windows(void) {
    int peer = size - 1 - rank, flavor, flag, *base;
    MPI_Win win, plain;
    MPI_Datatype pairs;
    clear(other);
    OK(MPI_Win_create(other, sizeof host, sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &win));
    OK(MPI_Win_set_errhandler(win, MPI_ERRORS_RETURN));
    OK(MPI_Win_get_attr(win, MPI_WIN_BASE, &base, &flag));
    CHECK(flag && base == other);
    OK(MPI_Win_get_attr(win, MPI_WIN_CREATE_FLAVOR, &base, &flag));
    flavor = *base;
    CHECK(flavor == MPI_WIN_FLAVOR_CREATE);
    number(3000 * rank);
    fill(device, host, sizeof host);
    OK(MPI_Win_fence(0, win));
    OK(MPI_Put(device, N / 2, MPI_INT, peer, 0, N / 2, MPI_INT, win));
    OK(MPI_Put(host + N / 2, N / 2, MPI_INT, peer, N / 2, N / 2, MPI_INT, win));
    OK(MPI_Win_fence(0, win));
    is_numbered(other, N, 3000 * peer);
    OK(MPI_Win_fence(0, win));
    /* Every other element, to and from it. */
    OK(MPI_Type_vector(N / 2, 1, 2, MPI_INT, &pairs));
    OK(MPI_Type_commit(&pairs));
    memset(got, 0, sizeof got);
    OK(MPI_Win_lock(MPI_LOCK_SHARED, peer, 0, win));
    OK(MPI_Get(got, N / 2, MPI_INT, peer, 0, 1, pairs, win));
    OK(MPI_Win_unlock(peer, win));
    for (int i = 0; i < N / 2; i++) CHECK(got[i] == 3000 * rank + 2 * i);
    OK(MPI_Type_free(&pairs));
    /* Sums by both, of device and host, and single elements. */
    OK(MPI_Win_fence(0, win));
    OK(MPI_Accumulate(device, N, MPI_INT, 0, 0, N, MPI_INT, MPI_SUM, win));
    OK(MPI_Accumulate(host, N, MPI_INT, 0, 0, N, MPI_INT, MPI_SUM, win));
    OK(MPI_Win_fence(0, win));
    if (rank == 0) {
        fetch(got, other, sizeof got);
        for (int i = 0; i < N; i++) CHECK(got[i] == 3000 + i + 2 * i + 2 * (3000 + i));
    }
    OK(MPI_Win_fence(0, win));
    if (rank == 1) {
        int one = 1, was, expected, next = -5;
        OK(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, win));
        OK(MPI_Fetch_and_op(&one, &was, MPI_INT, 0, 2, MPI_SUM, win));
        OK(MPI_Win_flush(0, win));
        expected = was + 1;
        OK(MPI_Compare_and_swap(&next, &expected, &was, MPI_INT, 0, 2, win));
        OK(MPI_Win_flush(0, win));
        CHECK(was == expected);
        OK(MPI_Get(&was, 1, MPI_INT, 0, 2, 1, MPI_INT, win));
        OK(MPI_Win_unlock(0, win));
        CHECK(was == -5);
    }
    CHECK(MPI_Put(host, 2, MPI_INT, peer, N - 1, 2, MPI_INT, win) != MPI_SUCCESS);
    OK(MPI_Win_free(&win));
    OK(MPI_Win_allocate(sizeof host, sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &base, &plain));
    OK(MPI_Win_fence(0, plain));
    OK(MPI_Put(device, N, MPI_INT, peer, 0, N, MPI_INT, plain));
    OK(MPI_Win_fence(0, plain));
    for (int i = 0; i < N; i++) CHECK(base[i] == 3000 * peer + i);
    clear(other);
    OK(MPI_Get(other, N, MPI_INT, peer, 0, N, MPI_INT, plain));
    OK(MPI_Win_fence(0, plain));
    is_numbered(other, N, 3000 * rank);
    OK(MPI_Win_free(&plain));
}

int main(int argc, char **argv) {
    /* One rank's driver is there before MPI, the other's comes behind. */
    int early = getenv("OSIER_RANK") && !strcmp(getenv("OSIER_RANK"), "0");
    if (early) open_driver();
    begin(&argc, &argv);
    if (!early) open_driver();
    CHECK(size == 2);
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    device = on_device(sizeof host);
    other = on_device(sizeof host);
    messages();
    partitions();
    layouts();
    collectives();
    local();
    borders();
    windows();
    CHECK(cuda.release((device_address)device) == 0);
    CHECK(cuda.release((device_address)other) == 0);
    return end();
}
