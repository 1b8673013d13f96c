/* Accesses of rank 0 to the window of rank 1, which waits in a barrier: ns of each. */
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

static void barrier(long n, void *arg)
{
    (void)arg;
    for (long i = 0; i < n; i++)
        MPI_Barrier(MPI_COMM_WORLD);
}

static void all(struct options *o, const char *kind, struct state *s)
{
    static const struct {
        const char *name;
        void (*body)(long n, void *state);
        int bytes;
    } rows[] = {
        {"put-flush", put8, 8},       {"get-flush", get8, 8},    {"fetch-and-op", fetch, 8},
        {"compare-swap", swap, 8},    {"put-window-64", put_rate, 8},
        {"accumulate", accumulate, 8000},
        {"put", put, 4096},           {"get", get_bytes, 4096},  {"put", put, 65536},
        {"get", get_bytes, 65536},    {"put", put, 1 << 20},     {"get", get_bytes, 1 << 20},
        {"put", put, 4 << 20},        {"get", get_bytes, 4 << 20},
    };
    char name[64];
    MPI_Win_lock_all(0, s->win);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        s->bytes = rows[i].bytes;
        double t = measure(o, rows[i].body, s);
        snprintf(name, sizeof name, "%s-%s", kind, rows[i].name);
        print_value(o, name, (size_t)rows[i].bytes, "ns", 1e9 * t);
    }
    MPI_Win_unlock_all(s->win);
    snprintf(name, sizeof name, "%s-lock-unlock", kind);
    print_value(o, name, 0, "ns", 1e9 * measure(o, lock, s));
    snprintf(name, sizeof name, "%s-fence", kind);
    print_value(o, name, 0, "ns", 1e9 * measure(o, fence, s));
    MPI_Win_fence(MPI_MODE_NOSUCCEED, s->win);
}

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
    MPI_Win_allocate(MOST_BYTES, 8, MPI_INFO_NULL, MPI_COMM_WORLD, &base, &s.win);
    memset(base, 0, MOST_BYTES);
    all(&o, "allocated", &s);
    MPI_Win_free(&s.win);
    base = calloc(1, MOST_BYTES);
    MPI_Win_create(base, MOST_BYTES, 8, MPI_INFO_NULL, MPI_COMM_WORLD, &s.win);
    all(&o, "plain", &s);
    MPI_Win_free(&s.win);
    print_value(&o, "barrier", 0, "ns", 1e9 * measure(&o, barrier, &s));
    free(base);
    free(s.buffer);
    MPI_Finalize();
    return 0;
}
