/* Windows of short messages in each form of point-to-point, one way, each window answered by
 * one message: seconds per message. All forms in turn in each repetition, so that a change of
 * the machine's state meets all.
 *
 *   blocking     MPI_Send, MPI_Recv
 *   nonblocking  MPI_Isend, MPI_Irecv, MPI_Waitall; the sender is ahead as it likes
 *   posted       the same; the answer leaves once the next window's receives are posted
 *   posting      MPI_Irecv of the form before alone, in the shortest window
 *   persistent   MPI_Startall, MPI_Waitall; receives posted before as well
 */
#include "bench.h"

#define FORMS 5

static const char *const names[FORMS] = {"blocking", "nonblocking", "posted", "persistent",
                                         "persistent-ahead"};

struct state {
    struct pool send, recv;
    int bytes, width, form;
    /* Shortest loop of MPI_Irecv in the form "posted". */
    double posting;
    MPI_Request out[MAX_WINDOW], in[MAX_WINDOW];
    MPI_Request again_out[MAX_WINDOW], again_in[MAX_WINDOW];
};

static void run_sender(struct state *s, int peer)
{
    char go;
    if (s->form == 2 || s->form == 3)
        MPI_Recv(&go, 1, MPI_BYTE, peer, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (s->form == 0) {
        for (int k = 0; k < s->width; k++)
            MPI_Send(pool_next(&s->send), s->bytes, MPI_BYTE, peer, 1, MPI_COMM_WORLD);
    } else if (s->form < 3) {
        for (int k = 0; k < s->width; k++)
            MPI_Isend(pool_next(&s->send), s->bytes, MPI_BYTE, peer, 1, MPI_COMM_WORLD,
                      &s->out[k]);
        MPI_Waitall(s->width, s->out, MPI_STATUSES_IGNORE);
    } else {
        MPI_Startall(s->width, s->again_out);
        MPI_Waitall(s->width, s->again_out, MPI_STATUSES_IGNORE);
    }
    if (s->form != 2 && s->form != 3)
        MPI_Recv(&go, 1, MPI_BYTE, peer, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void run_receiver(struct state *s, int peer)
{
    char go = 0;
    if (s->form == 0) {
        for (int k = 0; k < s->width; k++)
            MPI_Recv(pool_next(&s->recv), s->bytes, MPI_BYTE, peer, 1, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
    } else if (s->form < 3) {
        double began = s->form == 2 ? MPI_Wtime() : 0, took;
        for (int k = 0; k < s->width; k++)
            MPI_Irecv(pool_next(&s->recv), s->bytes, MPI_BYTE, peer, 1, MPI_COMM_WORLD,
                      &s->in[k]);
        took = s->form == 2 ? MPI_Wtime() - began : 0;
        if (s->form == 2 && (s->posting == 0 || took < s->posting))
            s->posting = took;
    } else {
        MPI_Startall(s->width, s->again_in);
    }
    if (s->form == 2 || s->form == 3)
        MPI_Send(&go, 1, MPI_BYTE, peer, 2, MPI_COMM_WORLD);
    if (s->form != 0)
        MPI_Waitall(s->width, s->form < 3 ? s->in : s->again_in, MPI_STATUSES_IGNORE);
    if (s->form != 2 && s->form != 3)
        MPI_Send(&go, 1, MPI_BYTE, peer, 2, MPI_COMM_WORLD);
}

static void run(long n, void *arg)
{
    struct state *s = arg;
    for (long i = 0; i < n; i++) {
        if (bench_rank == 0)
            run_sender(s, 1);
        else
            run_receiver(s, 0);
    }
}

static void one_size(const struct options *o, size_t bytes)
{
    struct state *s = calloc(1, sizeof *s);
    double *seconds[FORMS];
    struct options once = *o;
    once.repetitions = 1;
    s->send = pool_new(o, bytes, 1, (char)(1 + bench_rank));
    s->recv = pool_new(o, bytes, (size_t)o->window, 0);
    s->bytes = (int)bytes;
    s->width = o->window;
    for (int k = 0; k < s->width; k++) {
        MPI_Send_init(pool_next(&s->send), s->bytes, MPI_BYTE, 1 - bench_rank, 1, MPI_COMM_WORLD,
                      &s->again_out[k]);
        MPI_Recv_init(pool_next(&s->recv), s->bytes, MPI_BYTE, 1 - bench_rank, 1, MPI_COMM_WORLD,
                      &s->again_in[k]);
    }
    for (int f = 0; f < FORMS; f++)
        seconds[f] = calloc((size_t)o->repetitions, sizeof **seconds);
    for (int r = 0; r < o->repetitions; r++)
        for (s->form = 0; s->form < FORMS; s->form++)
            seconds[s->form][r] = measure(&once, run, s) / s->width;
    for (int f = 0; f < FORMS; f++) {
        print_value(o, names[f], bytes, "ns", 1e9 * median(seconds[f], o->repetitions));
        free(seconds[f]);
    }
    if (bench_rank == 1)
        MPI_Send(&s->posting, 1, MPI_DOUBLE, 0, 3, MPI_COMM_WORLD);
    else
        MPI_Recv(&s->posting, 1, MPI_DOUBLE, 1, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    print_value(o, "posting", bytes, "ns", 1e9 * s->posting / s->width);
    for (int k = 0; k < s->width; k++) {
        MPI_Request_free(&s->again_out[k]);
        MPI_Request_free(&s->again_in[k]);
    }
    if (bytes && bench_rank == 1 && s->recv.base[bytes - 1] != 1)
        die("windows", "a message arrived with wrong bytes");
    pool_free(&s->send);
    pool_free(&s->recv);
    free(s);
}

int main(int argc, char **argv)
{
    struct options o;
    bench_init(&argc, &argv);
    parse_options(&o, argc, argv, "8");
    if (bench_ranks != 2)
        die("windows", "needs two ranks");
    for (int i = 0; i < o.n_sizes; i++)
        one_size(&o, o.sizes[i]);
    MPI_Finalize();
    return 0;
}
