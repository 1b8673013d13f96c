/* Ping-pong between two ranks: half the round trip, per size. */
#include "bench.h"

struct state {
    struct pool send, recv;
    int bytes;
};

static void ping_pong(long n, void *arg)
{
    struct state *s = arg;
    int peer = 1 - bench_rank;
    for (long i = 0; i < n; i++) {
        char *out = pool_next(&s->send), *in = pool_next(&s->recv);
        if (bench_rank == 0) {
            MPI_Send(out, s->bytes, MPI_BYTE, peer, 1, MPI_COMM_WORLD);
            MPI_Recv(in, s->bytes, MPI_BYTE, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Recv(in, s->bytes, MPI_BYTE, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(out, s->bytes, MPI_BYTE, peer, 1, MPI_COMM_WORLD);
        }
    }
}

int main(int argc, char **argv)
{
    struct options o;
    bench_init(&argc, &argv);
    parse_options(&o, argc, argv, "8,64,1K,4K,64K,1M,4M");
    if (bench_ranks != 2)
        die("latency", "needs two ranks");
    for (int i = 0; i < o.n_sizes; i++) {
        size_t bytes = o.sizes[i];
        struct state s = {pool_new(&o, bytes, 1, (char)(1 + bench_rank)),
                          pool_new(&o, bytes, 1, 0), (int)bytes};
        double t = measure(&o, ping_pong, &s);
        if (bytes && s.recv.base[bytes - 1] != 2 - bench_rank)
            die("latency", "a message arrived with wrong bytes");
        print_value(&o, "latency", bytes, "us", 0.5e6 * t);
        pool_free(&s.send);
        pool_free(&s.recv);
    }
    MPI_Finalize();
    return 0;
}
