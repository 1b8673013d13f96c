/* Several pairs at once, rank r of the lower half with rank r + half: latency
 * of a ping-pong, then messages per second of all pairs in windows. The case
 * of interest has more ranks than cores. */
#include "window.h"

struct ping {
    struct pool send, recv;
    int bytes;
};

static void ping_pong(long n, void *arg)
{
    struct ping *s = arg;
    int half = bench_ranks / 2, lower = bench_rank < half;
    int peer = lower ? bench_rank + half : bench_rank - half;
    for (long i = 0; i < n; i++) {
        char *out = pool_next(&s->send), *in = pool_next(&s->recv);
        if (lower) {
            MPI_Send(out, s->bytes, MPI_BYTE, peer, 1, MPI_COMM_WORLD);
            MPI_Recv(in, s->bytes, MPI_BYTE, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Recv(in, s->bytes, MPI_BYTE, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(out, s->bytes, MPI_BYTE, peer, 1, MPI_COMM_WORLD);
        }
    }
}

/* The mean over the pairs, each pair having taken its own median. */
static double over_pairs(double t)
{
    int half = bench_ranks / 2;
    double mine = bench_rank < half ? t : 0, sum = 0;
    MPI_Reduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    return sum / half;
}

int main(int argc, char **argv)
{
    struct options o;
    bench_init(&argc, &argv);
    parse_options(&o, argc, argv, "8");
    if (bench_ranks < 2 || bench_ranks % 2)
        die("multi-pair", "needs an even number of ranks");
    for (int i = 0; i < o.n_sizes; i++) {
        size_t bytes = o.sizes[i];
        struct ping s = {pool_new(&o, bytes, 1, 1), pool_new(&o, bytes, 1, 0), (int)bytes};
        double t = over_pairs(measure(&o, ping_pong, &s));
        print_value(&o, "multi-pair", bytes, "us", 0.5e6 * t);
        pool_free(&s.send);
        pool_free(&s.recv);
        t = over_pairs(window_measure(&o, bytes, 0));
        print_value(&o, "multi-pair", bytes, "msg/s", o.window * (bench_ranks / 2) / t);
    }
    MPI_Finalize();
    return 0;
}
