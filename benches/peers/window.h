/* Windows of non-blocking sends answered by one short message: the body that
 * bandwidth, bibandwidth and message rate share. */
#ifndef OSIER_PEER_WINDOW_H
#define OSIER_PEER_WINDOW_H

#include "bench.h"

struct window {
    struct pool send, recv;
    int bytes, width, both;
    MPI_Request out[MAX_WINDOW], in[MAX_WINDOW];
};

/* Receives of one window must not overlap, so each has a slot of its own;
 * `--overlap` gives them one buffer, which is not legal MPI but what some
 * well-known suites do. Sends may share a buffer and do, unless rotated. */
static struct window *window_new(const struct options *o, size_t bytes, int both)
{
    struct window *w = calloc(1, sizeof *w);
    w->send = pool_new(o, bytes, 1, (char)(1 + bench_rank));
    w->recv = pool_new(o, bytes, o->overlap ? 1 : (size_t)o->window, 0);
    w->bytes = (int)bytes;
    w->width = o->window;
    w->both = both;
    return w;
}

static void window_free(struct window *w)
{
    pool_free(&w->send);
    pool_free(&w->recv);
    free(w);
}

static void window_run(long n, void *arg)
{
    struct window *w = arg;
    /* Ranks of the lower half send to the upper half. */
    int half = bench_ranks / 2, lower = bench_rank < half;
    int peer = lower ? bench_rank + half : bench_rank - half;
    char ack = 0;
    for (long i = 0; i < n; i++) {
        if (!lower || w->both) {
            for (int k = 0; k < w->width; k++)
                MPI_Irecv(pool_next(&w->recv), w->bytes, MPI_BYTE, peer, 1, MPI_COMM_WORLD,
                          &w->in[k]);
        }
        if (lower || w->both) {
            for (int k = 0; k < w->width; k++)
                MPI_Isend(pool_next(&w->send), w->bytes, MPI_BYTE, peer, 1, MPI_COMM_WORLD,
                          &w->out[k]);
            MPI_Waitall(w->width, w->out, MPI_STATUSES_IGNORE);
        }
        if (!lower || w->both)
            MPI_Waitall(w->width, w->in, MPI_STATUSES_IGNORE);
        if (lower)
            MPI_Recv(&ack, 1, MPI_BYTE, peer, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        else
            MPI_Send(&ack, 1, MPI_BYTE, peer, 2, MPI_COMM_WORLD);
    }
}

/* Seconds of one window, as seen by rank 0. */
static double window_measure(const struct options *o, size_t bytes, int both)
{
    struct window *w = window_new(o, bytes, both);
    double t = measure(o, window_run, w);
    int lower = bench_rank < bench_ranks / 2;
    int peer = lower ? bench_rank + bench_ranks / 2 : bench_rank - bench_ranks / 2;
    if (bytes && (!lower || both) && w->recv.base[bytes - 1] != 1 + peer)
        die("window", "a message arrived with wrong bytes");
    window_free(w);
    return t;
}

#endif
