/* Windows: accesses in all kinds of epochs, attributes, errors. */
#include "check.h"

static int next_rank, before;

/* Columns of a matrix of 6 by 5 doubles. */
static MPI_Datatype column_type(void) {
    MPI_Datatype column;
    OK(MPI_Type_vector(6, 1, 5, MPI_DOUBLE, &column));
    OK(MPI_Type_commit(&column));
    return column;
}

static void fences(MPI_Win win, double *mine) {
    double row[6];
    MPI_Datatype column = column_type();
    OK(MPI_Win_fence(MPI_MODE_NOPRECEDE, win));
    for (int i = 0; i < 6; i++) row[i] = 100 * rank + i;
    OK(MPI_Put(row, 6, MPI_DOUBLE, next_rank, 2, 1, column, win));
    OK(MPI_Put(row, 0, MPI_DOUBLE, MPI_PROC_NULL, 0, 0, MPI_DOUBLE, win));
    OK(MPI_Win_fence(0, win));
    for (int i = 0; i < 30; i++) CHECK(mine[i] == (i % 5 == 2 ? 100 * before + i / 5 : 0));
    double got[6] = {0};
    OK(MPI_Get(got, 6, MPI_DOUBLE, next_rank, 2, 1, column, win));
    OK(MPI_Win_fence(MPI_MODE_NOSUCCEED, win));
    for (int i = 0; i < 6; i++) CHECK(got[i] == 100 * rank + i);
    FAILS(MPI_Get(got, 6, MPI_DOUBLE, next_rank, 2, 1, column, win), MPI_ERR_RMA_SYNC);
    OK(MPI_Type_free(&column));
}

static void generations(MPI_Win win, double *mine) {
    MPI_Group world, origin, target;
    OK(MPI_Win_get_group(win, &world));
    OK(MPI_Group_incl(world, 1, &before, &origin));
    OK(MPI_Group_incl(world, 1, &next_rank, &target));
    for (int turn = 0; turn < 10; turn++) {
        double value = rank + 0.5 * turn;
        int over = 0;
        OK(MPI_Win_post(origin, 0, win));
        FAILS(MPI_Win_post(origin, 0, win), MPI_ERR_RMA_SYNC);
        OK(MPI_Win_start(target, 0, win));
        OK(MPI_Put(&value, 1, MPI_DOUBLE, next_rank, 0, 1, MPI_DOUBLE, win));
        if (size > 2) FAILS(MPI_Put(&value, 1, MPI_DOUBLE, rank, 0, 1, MPI_DOUBLE, win), MPI_ERR_RMA_SYNC);
        OK(MPI_Win_complete(win));
        if (turn % 2) while (!over) OK(MPI_Win_test(win, &over));
        else OK(MPI_Win_wait(win));
        CHECK(mine[0] == before + 0.5 * turn);
    }
    FAILS(MPI_Win_complete(win), MPI_ERR_RMA_SYNC);
    FAILS(MPI_Win_wait(win), MPI_ERR_RMA_SYNC);
    OK(MPI_Group_free(&world)); OK(MPI_Group_free(&origin)); OK(MPI_Group_free(&target));
}

static void counters(MPI_Comm comm) {
    MPI_Win win;
    long *numbers, one = 1, was, sum[3] = {1, 2, 3}, old[3];
    int swaps = 0;
    OK(MPI_Win_allocate(8 * sizeof(long), sizeof(long), MPI_INFO_NULL, comm, &numbers, &win));
    CHECK((size_t)numbers % sizeof(long) == 0);
    for (int i = 0; i < 8; i++) CHECK(numbers[i] == 0);
    OK(MPI_Barrier(comm));
    OK(MPI_Win_lock_all(0, win));
    for (int turn = 0; turn < 100; turn++) {
        MPI_Request request;
        OK(MPI_Fetch_and_op(&one, &was, MPI_LONG, 0, 0, MPI_SUM, win));
        CHECK(was >= 0 && was < 100L * size);
        OK(MPI_Accumulate(sum, 3, MPI_LONG, 0, 1, 3, MPI_LONG, MPI_SUM, win));
        OK(MPI_Rget_accumulate(sum, 3, MPI_LONG, old, 3, MPI_LONG, 0, 1, 3, MPI_LONG, MPI_NO_OP, win, &request));
        OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
        OK(MPI_Win_flush(0, win));
        CHECK(old[1] % 2 == 0 && old[2] % 3 == 0 && old[0] > turn);
        /* A spin lock of the program's. */
        long zero = 0, mine = rank + 1;
        do OK(MPI_Compare_and_swap(&mine, &zero, &was, MPI_LONG, 0, 5, win)); while (was != 0);
        OK(MPI_Get(&was, 1, MPI_LONG, 0, 6, 1, MPI_LONG, win));
        OK(MPI_Win_flush(0, win));
        was++;
        OK(MPI_Put(&was, 1, MPI_LONG, 0, 6, 1, MPI_LONG, win));
        OK(MPI_Win_flush(0, win));
        OK(MPI_Fetch_and_op(&zero, &was, MPI_LONG, 0, 5, MPI_REPLACE, win));
        CHECK(was == mine);
        swaps++;
    }
    OK(MPI_Win_unlock_all(win));
    OK(MPI_Barrier(comm));
    if (rank == 0) {
        long all = 100L * size;
        CHECK(numbers[0] == all && numbers[1] == all && numbers[2] == 2 * all && numbers[3] == 3 * all);
        CHECK(numbers[5] == 0 && numbers[6] == all);
    }
    OK(MPI_Win_free(&win));
    CHECK(win == MPI_WIN_NULL);
}

static void locks(MPI_Win win, double *mine) {
    double two[2], value = 7;
    MPI_Request requests[2];
    OK(MPI_Barrier(MPI_COMM_WORLD));
    mine[0] = mine[1] = 0;
    OK(MPI_Win_sync(win));
    OK(MPI_Barrier(MPI_COMM_WORLD));
    for (int turn = 0; turn < 50; turn++) {
        OK(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, win));
        OK(MPI_Get(two, 2, MPI_DOUBLE, 0, 0, 2, MPI_DOUBLE, win));
        OK(MPI_Win_flush_local(0, win));
        CHECK(two[0] == two[1]);
        two[0] += 1; two[1] += 1;
        OK(MPI_Rput(&two[0], 1, MPI_DOUBLE, 0, 0, 1, MPI_DOUBLE, win, &requests[0]));
        OK(MPI_Rput(&two[1], 1, MPI_DOUBLE, 0, 1, 1, MPI_DOUBLE, win, &requests[1]));
        OK(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE));
        OK(MPI_Win_unlock(0, win));
        OK(MPI_Win_lock(MPI_LOCK_SHARED, next_rank, MPI_MODE_NOCHECK, win));
        OK(MPI_Put(&value, 1, MPI_DOUBLE, next_rank, 3, 1, MPI_DOUBLE, win));
        OK(MPI_Win_flush_all(win));
        OK(MPI_Win_unlock(next_rank, win));
    }
    OK(MPI_Barrier(MPI_COMM_WORLD));
    if (rank == 0) CHECK(mine[0] == 50 * size && mine[1] == 50 * size);
    CHECK(mine[3] == 7);
    FAILS(MPI_Win_unlock(0, win), MPI_ERR_RMA_SYNC);
    FAILS(MPI_Win_lock(77, 0, 0, win), MPI_ERR_LOCKTYPE);
    FAILS(MPI_Win_lock(MPI_LOCK_SHARED, size, 0, win), MPI_ERR_RANK);
    FAILS(MPI_Win_lock(MPI_LOCK_SHARED, 0, 1, win), MPI_ERR_ASSERT);
    FAILS(MPI_Win_flush(0, win), MPI_ERR_RMA_SYNC);
    OK(MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, win));
    FAILS(MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, win), MPI_ERR_RMA_SYNC);
    FAILS(MPI_Win_lock_all(0, win), MPI_ERR_RMA_SYNC);
    FAILS(MPI_Win_fence(0, win), MPI_ERR_RMA_SYNC);
    FAILS(MPI_Put(two, 1, MPI_DOUBLE, 0, 30, 1, MPI_DOUBLE, win), MPI_ERR_RMA_RANGE);
    FAILS(MPI_Put(two, 1, MPI_DOUBLE, 0, -1, 1, MPI_DOUBLE, win), MPI_ERR_RMA_RANGE);
    FAILS(MPI_Put(two, 2, MPI_DOUBLE, 0, 0, 1, MPI_DOUBLE, win), MPI_ERR_TYPE);
    FAILS(MPI_Put(two, -1, MPI_DOUBLE, 0, 0, 1, MPI_DOUBLE, win), MPI_ERR_COUNT);
    FAILS(MPI_Put(two, 1, MPI_DATATYPE_NULL, 0, 0, 1, MPI_DOUBLE, win), MPI_ERR_TYPE);
    FAILS(MPI_Accumulate(two, 1, MPI_DOUBLE, 0, 0, 1, MPI_DOUBLE, MPI_BAND, win), MPI_ERR_OP);
    FAILS(MPI_Accumulate(two, 1, MPI_DOUBLE, 0, 0, 1, MPI_DOUBLE, MPI_OP_NULL, win), MPI_ERR_OP);
    FAILS(MPI_Compare_and_swap(two, two, two, MPI_DOUBLE, 0, 0, win), MPI_ERR_TYPE);
    OK(MPI_Win_unlock(0, win));
}

/* Memory of all ranks, one behind the other. */
static void shared(void) {
    MPI_Win win;
    MPI_Comm host;
    int *own, *first, unit, n = rank + 1;
    MPI_Aint bytes;
    OK(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host));
    OK(MPI_Win_allocate_shared(n * sizeof(int), sizeof(int), MPI_INFO_NULL, host, &own, &win));
    OK(MPI_Win_lock_all(0, win));
    for (int i = 0; i < n; i++) own[i] = 10 * rank + i;
    OK(MPI_Win_sync(win));
    OK(MPI_Barrier(host));
    OK(MPI_Win_sync(win));
    OK(MPI_Win_shared_query(win, MPI_PROC_NULL, &bytes, &unit, &first));
    CHECK(bytes == sizeof(int) && unit == sizeof(int));
    int at = 0;
    for (int r = 0; r < size; r++) {
        int *theirs;
        OK(MPI_Win_shared_query(win, r, &bytes, &unit, &theirs));
        CHECK(bytes == (MPI_Aint)((r + 1) * sizeof(int)) && theirs == first + at);
        for (int i = 0; i <= r; i++) CHECK(first[at++] == 10 * r + i);
    }
    int got = 0;
    OK(MPI_Get(&got, 1, MPI_INT, size - 1, 0, 1, MPI_INT, win));
    CHECK(got == 10 * (size - 1));
    OK(MPI_Win_unlock_all(win));
    OK(MPI_Win_free(&win));
    OK(MPI_Comm_free(&host));
}

/* A list of numbers in memory that is attached as it grows. */
static void attached(void) {
    MPI_Win win;
    MPI_Aint heads[16], mine, theirs;
    long *elements[20], value;
    OK(MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &win));
    OK(MPI_Win_set_errhandler(win, MPI_ERRORS_RETURN));
    OK(MPI_Win_lock_all(0, win));
    for (int i = 0; i < 20; i++) {
        elements[i] = malloc(2 * sizeof(long));
        elements[i][0] = 1000 * rank + i;
        OK(MPI_Win_attach(win, elements[i], 2 * sizeof(long)));
        FAILS(MPI_Win_attach(win, elements[i], sizeof(long)), MPI_ERR_RMA_ATTACH);
        OK(MPI_Get_address(elements[i], &mine));
        OK(MPI_Allgather(&mine, 1, MPI_AINT, heads, 1, MPI_AINT, MPI_COMM_WORLD));
        theirs = heads[next_rank];
        OK(MPI_Get(&value, 1, MPI_LONG, next_rank, theirs, 1, MPI_LONG, win));
        OK(MPI_Win_flush(next_rank, win));
        CHECK(value == 1000 * next_rank + i);
        value = 7 * i;
        OK(MPI_Put(&value, 1, MPI_LONG, next_rank, MPI_Aint_add(theirs, sizeof(long)), 1, MPI_LONG, win));
        OK(MPI_Accumulate(&value, 1, MPI_LONG, next_rank, MPI_Aint_add(theirs, sizeof(long)), 1, MPI_LONG, MPI_SUM, win));
        OK(MPI_Win_flush(next_rank, win));
        OK(MPI_Barrier(MPI_COMM_WORLD));
        CHECK(elements[i][1] == 14 * i);
        FAILS(MPI_Get(&value, 1, MPI_LONG, next_rank, MPI_Aint_add(theirs, 2 * sizeof(long)), 1, MPI_LONG, win), MPI_ERR_RMA_RANGE);
    }
    OK(MPI_Barrier(MPI_COMM_WORLD));
    for (int i = 0; i < 20; i += 2) OK(MPI_Win_detach(win, elements[i]));
    FAILS(MPI_Win_detach(win, elements[0]), MPI_ERR_RMA_ATTACH);
    OK(MPI_Barrier(MPI_COMM_WORLD));
    /* The last one is still there, the one before is not. */
    OK(MPI_Get(&value, 1, MPI_LONG, next_rank, theirs, 1, MPI_LONG, win));
    CHECK(value == 1000 * next_rank + 19);
    OK(MPI_Get_address(elements[18], &mine));
    OK(MPI_Allgather(&mine, 1, MPI_AINT, heads, 1, MPI_AINT, MPI_COMM_WORLD));
    FAILS(MPI_Get(&value, 1, MPI_LONG, next_rank, heads[next_rank], 1, MPI_LONG, win), MPI_ERR_RMA_RANGE);
    OK(MPI_Win_unlock_all(win));
    OK(MPI_Win_free(&win));
    for (int i = 0; i < 20; i++) free(elements[i]);
}

static int copies, deletions, handled;

static int delete(MPI_Win win, int key, void *value, void *extra) {
    (void)win; (void)key; (void)value; (void)extra;
    deletions++;
    return MPI_SUCCESS;
}

static void handler(MPI_Win *win, int *code, ...) {
    int class;
    MPI_Error_class(*code, &class);
    CHECK(*win != MPI_WIN_NULL && class == MPI_ERR_RMA_SYNC);
    handled++;
}

static void about(MPI_Win win, void *base, MPI_Aint bytes, int flavor) {
    void *value;
    int flag, key, length;
    char name[MPI_MAX_OBJECT_NAME];
    MPI_Info info;
    MPI_Errhandler old, mine;
    OK(MPI_Win_get_attr(win, MPI_WIN_BASE, &value, &flag)); CHECK(flag && value == base);
    OK(MPI_Win_get_attr(win, MPI_WIN_SIZE, &value, &flag)); CHECK(flag && *(MPI_Aint *)value == bytes);
    OK(MPI_Win_get_attr(win, MPI_WIN_DISP_UNIT, &value, &flag)); CHECK(flag && *(int *)value == sizeof(double));
    OK(MPI_Win_get_attr(win, MPI_WIN_CREATE_FLAVOR, &value, &flag)); CHECK(flag && *(int *)value == flavor);
    OK(MPI_Win_get_attr(win, MPI_WIN_MODEL, &value, &flag)); CHECK(flag && *(int *)value == MPI_WIN_UNIFIED);
    OK(MPI_Win_create_keyval(MPI_WIN_NULL_COPY_FN, delete, &key, NULL));
    OK(MPI_Win_get_attr(win, key, &value, &flag)); CHECK(!flag);
    OK(MPI_Win_set_attr(win, key, &copies));
    OK(MPI_Win_get_attr(win, key, &value, &flag)); CHECK(flag && value == &copies);
    OK(MPI_Win_delete_attr(win, key)); CHECK(deletions == 1);
    OK(MPI_Win_set_attr(win, key, &copies));
    OK(MPI_Win_free_keyval(&key));
    OK(MPI_Win_set_name(win, "halo"));
    OK(MPI_Win_get_name(win, name, &length)); CHECK(!strcmp(name, "halo") && length == 4);
    OK(MPI_Info_create(&info));
    OK(MPI_Info_set(info, "no_locks", "true"));
    OK(MPI_Win_set_info(win, info));
    OK(MPI_Info_free(&info));
    OK(MPI_Win_get_info(win, &info));
    char text[MPI_MAX_INFO_VAL];
    length = sizeof text;
    OK(MPI_Info_get_string(info, "no_locks", &length, text, &flag)); CHECK(flag && !strcmp(text, "true"));
    OK(MPI_Info_free(&info));
    CHECK(MPI_Win_fromint(MPI_Win_toint(win)) == win);
    OK(MPI_Win_get_errhandler(win, &old));
    OK(MPI_Win_create_errhandler(handler, &mine));
    OK(MPI_Win_set_errhandler(win, mine));
    FAILS(MPI_Win_unlock(0, win), MPI_ERR_RMA_SYNC); CHECK(handled == 1);
    OK(MPI_Win_call_errhandler(win, MPI_ERR_RMA_SYNC)); CHECK(handled == 2);
    OK(MPI_Win_set_errhandler(win, old));
    OK(MPI_Errhandler_free(&mine));
    OK(MPI_Errhandler_free(&old));
}

/* Short puts to plain memory go together: none is lost, whatever comes between. */
static void many_puts(void) {
    enum { N = 3000 };
    long *there = calloc(N, sizeof(long)), value, got;
    MPI_Win win;
    MPI_Request request;
    OK(MPI_Win_create(there, N * sizeof(long), sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &win));
    OK(MPI_Win_set_errhandler(win, MPI_ERRORS_RETURN));
    for (int turn = 1; turn <= 3; turn++) {
        OK(MPI_Win_fence(0, win));
        for (int i = 0; i < N / 2; i++) {
            value = turn * 100000 + i;
            OK(MPI_Put(&value, 1, MPI_LONG, i % 50 ? next_rank : before, 2 * i, 1, MPI_LONG, win));
        }
        FAILS(MPI_Put(&value, 1, MPI_LONG, next_rank, N, 1, MPI_LONG, win), MPI_ERR_RMA_RANGE);
        OK(MPI_Win_fence(0, win));
        for (int i = 0; i < N / 2; i++) CHECK(there[2 * i] == turn * 100000 + i && there[2 * i + 1] == 0);
    }
    OK(MPI_Barrier(MPI_COMM_WORLD));
    OK(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, next_rank, 0, win));
    value = 5;
    OK(MPI_Put(&value, 1, MPI_LONG, next_rank, 4, 1, MPI_LONG, win));
    value = 6;
    OK(MPI_Put(&value, 1, MPI_LONG, next_rank, 6, 1, MPI_LONG, win));
    value = 2;
    OK(MPI_Accumulate(&value, 1, MPI_LONG, next_rank, 6, 1, MPI_LONG, MPI_SUM, win));
    OK(MPI_Get(&got, 1, MPI_LONG, next_rank, 4, 1, MPI_LONG, win));
    value = 9;
    OK(MPI_Rput(&value, 1, MPI_LONG, next_rank, 8, 1, MPI_LONG, win, &request));
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    value = 1;
    OK(MPI_Put(&value, 1, MPI_LONG, next_rank, 10, 1, MPI_LONG, win));
    OK(MPI_Win_unlock(next_rank, win));
    CHECK(got == 5);
    OK(MPI_Barrier(MPI_COMM_WORLD));
    CHECK(there[4] == 5 && there[6] == 8 && there[8] == 9 && there[10] == 1);
    OK(MPI_Win_free(&win));
    free(there);
}

int main(int argc, char **argv) {
    MPI_Win win;
    double *memory, plain[30];
    begin(&argc, &argv);
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    next_rank = (rank + 1) % size;
    before = (rank + size - 1) % size;

    OK(MPI_Win_allocate(sizeof plain, sizeof(double), MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &win));
    OK(MPI_Win_set_errhandler(win, MPI_ERRORS_RETURN));
    about(win, memory, sizeof plain, MPI_WIN_FLAVOR_ALLOCATE);
    fences(win, memory);
    generations(win, memory);
    locks(win, memory);
    OK(MPI_Win_free(&win));
    CHECK(deletions == 2);

    memset(plain, 0, sizeof plain);
    deletions = handled = 0;
    OK(MPI_Win_create(plain, sizeof plain, sizeof(double), MPI_INFO_NULL, MPI_COMM_WORLD, &win));
    OK(MPI_Win_set_errhandler(win, MPI_ERRORS_RETURN));
    about(win, plain, sizeof plain, MPI_WIN_FLAVOR_CREATE);
    fences(win, plain);
    generations(win, plain);
    locks(win, plain);
    OK(MPI_Win_free(&win));

    counters(MPI_COMM_WORLD);
    shared();
    attached();
    many_puts();

    /* Misuse is an error, not a crash. */
    FAILS(MPI_Win_create_c(plain, -1, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &win), MPI_ERR_SIZE);
    FAILS(MPI_Win_create(NULL, 8, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &win), MPI_ERR_BASE);
    FAILS(MPI_Win_create(plain, -1, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &win), MPI_ERR_SIZE);
    FAILS(MPI_Win_create(plain, 8, 0, MPI_INFO_NULL, MPI_COMM_WORLD, &win), MPI_ERR_DISP);
    FAILS(MPI_Win_create(plain, 8, 1, MPI_INFO_NULL, MPI_COMM_NULL, &win), MPI_ERR_COMM);
    win = MPI_WIN_NULL;
    FAILS(MPI_Win_free(&win), MPI_ERR_WIN);
    FAILS(MPI_Win_fence(0, (MPI_Win)(uintptr_t)0xdeadbeef12345678), MPI_ERR_WIN);
    return end();
}
