/* Collectives one behind the other: microseconds of a call, the mean of the
 * ranks' medians. Each case runs one of them, named by --collective; roots
 * take turns, so that none runs ahead of those that wait for it. A size is
 * that of a contribution, of a part or of the vector; each rank gets as much
 * of a reduce-scatter. Results are checked. `osier bench` does the same. */
#include "bench.h"

struct state {
    char *send, *recv;
    int bytes;
    int *counts, *places; /* of bytes */
    int *sums;            /* of doubles */
    long calls;
};

#define ALL MPI_COMM_WORLD
#define SENT s->send, bytes, MPI_BYTE
#define GOT s->recv, bytes, MPI_BYTE
#define GOT_V s->recv, s->counts, s->places, MPI_BYTE

/* One function for each, so that a call has no choice before it. */
#define EACH(name, ...)                                                                            \
    static void name(long n, void *arg)                                                            \
    {                                                                                              \
        struct state *s = arg;                                                                     \
        int bytes = s->bytes, sums = bytes / 8;                                                    \
        for (long i = 0; i < n; i++) {                                                             \
            int root = (int)(s->calls++ % bench_ranks);                                            \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
        (void)sums;                                                                                \
        (void)bytes;                                                                               \
    }

EACH(barrier, (void)root; MPI_Barrier(ALL))
EACH(bcast, MPI_Bcast(GOT, root, ALL))
EACH(gather, MPI_Gather(SENT, GOT, root, ALL))
EACH(gatherv, MPI_Gatherv(SENT, GOT_V, root, ALL))
EACH(scatter, MPI_Scatter(SENT, GOT, root, ALL))
EACH(scatterv, MPI_Scatterv(s->send, s->counts, s->places, MPI_BYTE, GOT, root, ALL))
EACH(allgather, (void)root; MPI_Allgather(SENT, GOT, ALL))
EACH(allgatherv, (void)root; MPI_Allgatherv(SENT, GOT_V, ALL))
EACH(alltoall, (void)root; MPI_Alltoall(SENT, GOT, ALL))
EACH(alltoallv, (void)root;
     MPI_Alltoallv(s->send, s->counts, s->places, MPI_BYTE, GOT_V, ALL))
EACH(reduce, MPI_Reduce(s->send, s->recv, sums, MPI_DOUBLE, MPI_SUM, root, ALL))
EACH(allreduce, (void)root; MPI_Allreduce(s->send, s->recv, sums, MPI_DOUBLE, MPI_SUM, ALL))
EACH(reduce_scatter_block, (void)root;
     MPI_Reduce_scatter_block(s->send, s->recv, sums, MPI_DOUBLE, MPI_SUM, ALL))
EACH(reduce_scatter, (void)root;
     MPI_Reduce_scatter(s->send, s->recv, s->sums, MPI_DOUBLE, MPI_SUM, ALL))
EACH(scan, (void)root; MPI_Scan(s->send, s->recv, sums, MPI_DOUBLE, MPI_SUM, ALL))
EACH(exscan, (void)root; MPI_Exscan(s->send, s->recv, sums, MPI_DOUBLE, MPI_SUM, ALL))

/* What a rank contributes, and what it has afterwards. */
enum content {
    NOTHING,
    VECTOR,  /* the root's bytes */
    OWN,     /* the same bytes for all */
    TO_EACH, /* other bytes for each */
    SUMS,    /* doubles */
    PARTS    /* doubles, a part for each */
};

static const struct collective {
    const char *name;
    void (*call)(long n, void *state);
    enum content sent;
    int from_all;  /* a part of each rank arrives */
    int from_root; /* the root's parts arrive */
} all[] = {
    {"barrier", barrier, NOTHING, 0, 0},
    {"bcast", bcast, VECTOR, 0, 0},
    {"gather", gather, OWN, 1, 0},
    {"gatherv", gatherv, OWN, 1, 0},
    {"scatter", scatter, TO_EACH, 0, 1},
    {"scatterv", scatterv, TO_EACH, 0, 1},
    {"allgather", allgather, OWN, 1, 0},
    {"allgatherv", allgatherv, OWN, 1, 0},
    {"alltoall", alltoall, TO_EACH, 1, 0},
    {"alltoallv", alltoallv, TO_EACH, 1, 0},
    {"reduce", reduce, SUMS, 0, 0},
    {"allreduce", allreduce, SUMS, 0, 0},
    {"reduce-scatter-block", reduce_scatter_block, PARTS, 0, 0},
    {"reduce-scatter", reduce_scatter, PARTS, 0, 0},
    {"scan", scan, SUMS, 0, 0},
    {"exscan", exscan, SUMS, 0, 0},
};

static double part(int rank, int i)
{
    return rank + 1 + i % 7;
}

static char mark(int from, int to)
{
    return (char)(1 + (from * 7 + to) % 100);
}

static void fill(const struct collective *c, struct state *s)
{
    size_t bytes = (size_t)s->bytes;
    int sums = s->bytes / 8 * (c->sent == PARTS ? bench_ranks : 1);
    if (c->sent == SUMS || c->sent == PARTS)
        for (int i = 0; i < sums; i++)
            ((double *)s->send)[i] = part(bench_rank, i);
    /* All have the same of a scatter, for any of them may be the root. */
    for (int to = 0; c->sent == TO_EACH && to < bench_ranks; to++)
        memset(s->send + (size_t)to * bytes, mark(c->from_root ? 0 : bench_rank, to), bytes);
    if (c->sent == OWN)
        memset(s->send, mark(bench_rank, 0), bytes);
    if (c->sent == VECTOR && bench_rank == 0)
        memset(s->recv, mark(0, 0), bytes);
}

static void check(const struct collective *c, const struct state *s)
{
    size_t bytes = (size_t)s->bytes;
    int wrong = 0;
    if (c->sent == SUMS || c->sent == PARTS) {
        int ranks = c->call == scan ? bench_rank + 1 : c->call == exscan ? bench_rank : bench_ranks;
        int first = c->sent == PARTS ? bench_rank * (s->bytes / 8) : 0;
        for (int i = 0; ranks && i < s->bytes / 8; i++) {
            double sum = 0;
            for (int r = 0; r < ranks; r++)
                sum += part(r, first + i);
            wrong |= ((double *)s->recv)[i] != sum;
        }
    } else if (c->from_all) {
        for (int r = 0; r < bench_ranks; r++)
            for (size_t i = 0; i < bytes; i++)
                wrong |= s->recv[(size_t)r * bytes + i] !=
                         mark(r, c->sent == TO_EACH ? bench_rank : 0);
    } else if (c->sent != NOTHING) {
        for (size_t i = 0; i < bytes; i++)
            wrong |= s->recv[i] != mark(0, c->from_root ? bench_rank : 0);
    }
    if (wrong)
        die(c->name, "wrong result");
}

static char *room(size_t bytes)
{
    void *at = NULL;
    if (posix_memalign(&at, 4096, bytes + 64))
        die("no memory", "posix_memalign");
    memset(at, 0, bytes + 64);
    return at;
}

int main(int argc, char **argv)
{
    struct options o;
    const struct collective *c = NULL;
    bench_init(&argc, &argv);
    parse_options(&o, argc, argv, "8");
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(all[i].name, o.collective))
            c = &all[i];
    if (!c)
        die("unknown collective", o.collective);
    for (int i = 0; i < o.n_sizes; i++) {
        size_t ranks = (size_t)bench_ranks;
        struct state s = {.bytes = (int)o.sizes[i]};
        s.send = room(o.sizes[i] * ranks);
        s.recv = room(o.sizes[i] * ranks);
        s.counts = malloc(3 * ranks * sizeof *s.counts);
        if (!s.counts)
            die("no memory", "malloc");
        s.places = s.counts + ranks;
        s.sums = s.places + ranks;
        for (int r = 0; r < bench_ranks; r++) {
            s.counts[r] = s.bytes;
            s.places[r] = r * s.bytes;
            s.sums[r] = s.bytes / 8;
        }
        fill(c, &s);
        double mine = measure(&o, c->call, &s), sum = 0;
        /* Each is the root once more, so that all have had a result. */
        s.calls = 0;
        c->call(bench_ranks, &s);
        check(c, &s);
        MPI_Reduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
        print_value(&o, o.collective, o.sizes[i], "us", 1e6 * sum / bench_ranks);
        free(s.send);
        free(s.recv);
        free(s.counts);
    }
    MPI_Finalize();
    return 0;
}
