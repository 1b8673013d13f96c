/* An access of rank 0 to the window of rank 1, which waits in a barrier (--collective NAME), to
 * memory of MPI_Win_allocate (--memory heap) or of the program's own. */
#include "bench.h"

enum { MOST_BYTES = 4 << 20 };

struct state {
    MPI_Win win;
    char *buffer;
    long one, two, was;
    int bytes;
};

static void put8(long n, void *arg)
{
    struct state *s = arg;
    for (long i = 0; bench_rank == 0 && i < n; i++) {
        MPI_Put(&s->one, 1, MPI_LONG, 1, 0, 1, MPI_LONG, s->win);
        MPI_Win_flush(1, s->win);
    }
}

static void get8(long n, void *arg)
{
    struct state *s = arg;
    for (long i = 0; bench_rank == 0 && i < n; i++) {
        MPI_Get(&s->was, 1, MPI_LONG, 1, 0, 1, MPI_LONG, s->win);
        MPI_Win_flush(1, s->win);
    }
}

static void fetch(long n, void *arg)
{
    struct state *s = arg;
    for (long i = 0; bench_rank == 0 && i < n; i++) {
        MPI_Fetch_and_op(&s->one, &s->was, MPI_LONG, 1, 0, MPI_SUM, s->win);
        MPI_Win_flush(1, s->win);
    }
}

static void swap(long n, void *arg)
{
    struct state *s = arg;
    for (long i = 0; bench_rank == 0 && i < n; i++) {
        MPI_Compare_and_swap(&s->two, &s->one, &s->was, MPI_LONG, 1, 0, s->win);
        MPI_Win_flush(1, s->win);
    }
}

static void accumulate(long n, void *arg)
{
    struct state *s = arg;
    for (long i = 0; bench_rank == 0 && i < n; i++) {
        MPI_Accumulate(s->buffer, 1000, MPI_DOUBLE, 1, 0, 1000, MPI_DOUBLE, MPI_SUM, s->win);
        MPI_Win_flush(1, s->win);
    }
}

static void put(long n, void *arg)
{
    struct state *s = arg;
    for (long i = 0; bench_rank == 0 && i < n; i++) {
        MPI_Put(s->buffer, s->bytes, MPI_BYTE, 1, 0, s->bytes, MPI_BYTE, s->win);
        MPI_Win_flush(1, s->win);
    }
}

static void get_bytes(long n, void *arg)
{
    struct state *s = arg;
    for (long i = 0; bench_rank == 0 && i < n; i++) {
        MPI_Get(s->buffer, s->bytes, MPI_BYTE, 1, 0, s->bytes, MPI_BYTE, s->win);
        MPI_Win_flush(1, s->win);
    }
}

static void put_rate(long n, void *arg)
{
    struct state *s = arg;
    for (long i = 0; bench_rank == 0 && i < n; i++) {
        for (int k = 0; k < 64; k++)
            MPI_Put(&s->one, 1, MPI_LONG, 1, k, 1, MPI_LONG, s->win);
        MPI_Win_flush(1, s->win);
    }
}

static void lock(long n, void *arg)
{
    struct state *s = arg;
    for (long i = 0; bench_rank == 0 && i < n; i++) {
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 1, 0, s->win);
        MPI_Win_unlock(1, s->win);
    }
}

static void fence(long n, void *arg)
{
    struct state *s = arg;
    for (long i = 0; i < n; i++)
        MPI_Win_fence(0, s->win);
}

/* Accesses to rank 1's part, which an epoch on all is open for, and what opens and closes one. */
static const struct access {
    const char *name;
    void (*body)(long n, void *state);
    int in_epoch;
} accesses[] = {
    {"put-flush", put8, 1},        {"get-flush", get8, 1},       {"fetch-and-op", fetch, 1},
    {"compare-swap", swap, 1},     {"put-window-64", put_rate, 1}, {"accumulate", accumulate, 1},
    {"put", put, 1},               {"get", get_bytes, 1},        {"lock-unlock", lock, 0},
    {"fence", fence, 0},
};

int main(int argc, char **argv)
{
    struct options o;
    struct state s = {MPI_WIN_NULL, NULL, 1, 2, 0, 0};
    char *base;
    bench_init(&argc, &argv);
    parse_options(&o, argc, argv, "8");
    if (bench_ranks != 2)
        die("rma", "needs two ranks");
    s.buffer = calloc(1, MOST_BYTES);
    if (o.heap) {
        MPI_Win_allocate(MOST_BYTES, 8, MPI_INFO_NULL, MPI_COMM_WORLD, &base, &s.win);
    } else {
        base = calloc(1, MOST_BYTES);
        MPI_Win_create(base, MOST_BYTES, 8, MPI_INFO_NULL, MPI_COMM_WORLD, &s.win);
    }
    const struct access *access = NULL;
    for (size_t i = 0; i < sizeof accesses / sizeof *accesses; i++)
        if (!strcmp(accesses[i].name, o.collective))
            access = &accesses[i];
    if (!access)
        die("rma", "no such access");
    memset(base, 0, MOST_BYTES);
    for (int i = 0; i < o.n_sizes; i++) {
        s.bytes = (int)o.sizes[i];
        if (access->in_epoch)
            MPI_Win_lock_all(0, s.win);
        double seconds = measure(&o, access->body, &s);
        if (access->in_epoch)
            MPI_Win_unlock_all(s.win);
        char name[64];
        snprintf(name, sizeof name, "rma-%s", access->name);
        print_value(&o, name, o.sizes[i], "us", 1e6 * seconds);
    }
    if (!access->in_epoch)
        MPI_Win_fence(MPI_MODE_NOSUCCEED, s.win);
    MPI_Win_free(&s.win);
    if (!o.heap)
        free(base);
    free(s.buffer);
    MPI_Finalize();
    return 0;
}
