/* Accesses to windows that nothing orders. */
#include "wrong.h"

static MPI_Win win;
static int *base;

static void make(void)
{
    MPI_Win_allocate(8 * sizeof(int), sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &base, &win);
}

CASE(two_puts, 3, "two ranks put to the same bytes between fences", "windows",
     "conflict: put and put of bytes 4 to 8 of rank 0's part")
{
    int value = rank;
    make();
    MPI_Win_fence(0, win);
    if (rank)
        MPI_Put(&value, 1, MPI_INT, 0, wrong ? 1 : rank, 1, MPI_INT, win);
    MPI_Win_fence(0, win);
    MPI_Win_free(&win);
}

CASE(get_of_a_put, 3, "a rank gets what another puts between the same fences", "windows",
     "of bytes 4 to 8 of rank 0's part")
{
    int value = rank;
    make();
    MPI_Win_fence(0, win);
    if (rank == 1)
        MPI_Put(&value, 1, MPI_INT, 0, 1, 1, MPI_INT, win);
    if (!wrong)
        MPI_Win_fence(0, win);
    if (rank == 2)
        MPI_Get(&value, 1, MPI_INT, 0, 1, 1, MPI_INT, win);
    MPI_Win_fence(0, win);
    MPI_Win_free(&win);
}

CASE(unflushed, 2, "a rank gets what it has put, without a flush between", "windows",
     "conflict: put and get of bytes 0 to 4 of rank 1's part")
{
    int value = 7, got;
    make();
    if (rank == 0) {
        MPI_Win_lock(MPI_LOCK_SHARED, 1, 0, win);
        MPI_Put(&value, 1, MPI_INT, 1, 0, 1, MPI_INT, win);
        if (!wrong)
            MPI_Win_flush(1, win);
        MPI_Get(&got, 1, MPI_INT, 1, 0, 1, MPI_INT, win);
        MPI_Win_unlock(1, win);
    }
    MPI_Win_free(&win);
}

CASE(two_operators, 2, "two ranks update an element by different operators", "windows",
     "conflict: update and update of bytes 8 to 12 of rank 0's part")
{
    int value = rank;
    make();
    MPI_Win_fence(0, win);
    MPI_Accumulate(&value, 1, MPI_INT, 0, 2, 1, MPI_INT, wrong && rank ? MPI_MAX : MPI_SUM, win);
    MPI_Win_fence(0, win);
    MPI_Win_free(&win);
}

CASE(one_exposure, 3, "two ranks put to the same bytes in one exposure", "windows",
     "conflict: put and put of bytes 0 to 4 of rank 0's part")
{
    int value = rank, origins[] = {1, 2}, target = 0;
    MPI_Group all, others;
    make();
    MPI_Comm_group(MPI_COMM_WORLD, &all);
    if (rank == 0) {
        MPI_Group_incl(all, 2, origins, &others);
        MPI_Win_post(others, 0, win);
        MPI_Win_wait(win);
    } else {
        MPI_Group_incl(all, 1, &target, &others);
        MPI_Win_start(others, 0, win);
        MPI_Put(&value, 1, MPI_INT, 0, wrong ? 0 : rank, 1, MPI_INT, win);
        MPI_Win_complete(win);
    }
    MPI_Group_free(&others);
    MPI_Group_free(&all);
    MPI_Win_free(&win);
}
