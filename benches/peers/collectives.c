/* Collectives one behind the other: microseconds of a call, the mean of the
 * ranks' medians. Each case runs one of them, named by --collective; roots
 * take turns, so that none runs ahead of those that wait for it. Results are
 * checked. `osier bench` does the same. */
#include "bench.h"

struct state {
    const char *name;
    char *send, *recv;
    int bytes;
    long calls;
};

static void call(long n, void *arg)
{
    struct state *s = arg;
    int bytes = s->bytes, sums = bytes / 8;
    MPI_Comm all = MPI_COMM_WORLD;
    for (long i = 0; i < n; i++) {
        int root = (int)(s->calls++ % bench_ranks);
        switch (s->name[0] == 'a' ? s->name[3] : s->name[1]) {
        case 'a': /* barrier */
            MPI_Barrier(all);
            break;
        case 'c': /* bcast */
            MPI_Bcast(s->recv, bytes, MPI_BYTE, root, all);
            break;
        case 'r': /* allreduce */
            MPI_Allreduce(s->send, s->recv, sums, MPI_DOUBLE, MPI_SUM, all);
            break;
        case 'g': /* allgather */
            MPI_Allgather(s->send, bytes, MPI_BYTE, s->recv, bytes, MPI_BYTE, all);
            break;
        default: /* alltoall */
            MPI_Alltoall(s->send, bytes, MPI_BYTE, s->recv, bytes, MPI_BYTE, all);
        }
    }
}

static double part(int rank, int i)
{
    return rank + 1 + i % 7;
}

static char mark(int from, int to)
{
    return (char)(1 + (from * 7 + to) % 100);
}

static void fill(struct state *s)
{
    size_t bytes = (size_t)s->bytes;
    if (!strcmp(s->name, "allreduce"))
        for (int i = 0; i < s->bytes / 8; i++)
            ((double *)s->send)[i] = part(bench_rank, i);
    else
        for (int to = 0; to < bench_ranks; to++)
            memset(s->send + (size_t)to * bytes, mark(bench_rank, s->name[3] == 't' ? to : 0), bytes);
    if (!strcmp(s->name, "bcast") && bench_rank == 0)
        memset(s->recv, mark(0, 0), bytes);
}

static void check(const struct state *s)
{
    size_t bytes = (size_t)s->bytes;
    int wrong = 0;
    if (!strcmp(s->name, "allreduce")) {
        for (int i = 0; i < s->bytes / 8; i++) {
            double sum = 0;
            for (int r = 0; r < bench_ranks; r++)
                sum += part(r, i);
            wrong |= ((double *)s->recv)[i] != sum;
        }
    } else if (!strcmp(s->name, "bcast")) {
        for (size_t i = 0; i < bytes; i++)
            wrong |= s->recv[i] != mark(0, 0);
    } else if (strcmp(s->name, "barrier")) {
        for (int r = 0; r < bench_ranks; r++)
            for (size_t i = 0; i < bytes; i++)
                wrong |= s->recv[(size_t)r * bytes + i] !=
                         mark(r, s->name[3] == 't' ? bench_rank : 0);
    }
    if (wrong)
        die(s->name, "wrong result");
}

int main(int argc, char **argv)
{
    struct options o;
    bench_init(&argc, &argv);
    parse_options(&o, argc, argv, "8");
    for (int i = 0; i < o.n_sizes; i++) {
        size_t all = o.sizes[i] * (size_t)bench_ranks + 64;
        struct state s = {.name = o.collective, .bytes = (int)o.sizes[i]};
        if (posix_memalign((void **)&s.send, 4096, all) ||
            posix_memalign((void **)&s.recv, 4096, all))
            die("no memory", "posix_memalign");
        memset(s.send, 0, all);
        memset(s.recv, 0, all);
        fill(&s);
        double mine = measure(&o, call, &s), sum = 0;
        check(&s);
        MPI_Reduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
        print_value(&o, o.collective, o.sizes[i], "us", 1e6 * sum / bench_ranks);
        free(s.send);
        free(s.recv);
    }
    MPI_Finalize();
    return 0;
}
