/* Threads of one rank, each with a communicator of its own: with itself (one
 * rank), or thread i with thread i of the other rank (two). All run at the same
 * time; the rate counts the messages that the threads of a rank receive. */
#include "bench.h"
#include <pthread.h>
#include <stdatomic.h>

#define MAX_THREADS 64
#define BATCH 64

struct thread {
    pthread_t id;
    MPI_Comm comm;
    int peer, place, bytes;
    double seconds;
    double rate;
    pthread_barrier_t *ready;
    atomic_int *over;
};

static void *exchange(void *arg)
{
    struct thread *t = arg;
    char out[4096] = {0}, in[4096] = {0};
    long messages = 0;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((int)(t->place % sysconf(_SC_NPROCESSORS_ONLN)), &one);
    sched_setaffinity(0, sizeof one, &one);
    pthread_barrier_wait(t->ready);
    double begin = now();
    for (;;) {
        for (int i = 0; i < BATCH; i++) {
            int last = 0;
            if (i + 1 == BATCH && bench_rank <= t->peer) {
                if (now() - begin >= t->seconds)
                    atomic_store(t->over, 1);
                last = atomic_load(t->over);
            }
            out[0] = (char)last;
            MPI_Sendrecv(out, t->bytes, MPI_BYTE, t->peer, 1, in, t->bytes, MPI_BYTE, t->peer, 1,
                         t->comm, MPI_STATUS_IGNORE);
            messages++;
            if (last || (bench_rank > t->peer && in[0])) {
                t->rate = (double)messages / (now() - begin);
                return NULL;
            }
        }
    }
}

int main(int argc, char **argv)
{
    struct options o;
    int provided, most = 2;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &bench_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &bench_ranks);
    if (provided < MPI_THREAD_MULTIPLE)
        die("threads", "the library has no MPI_THREAD_MULTIPLE");
    parse_options(&o, argc, argv, "8");
    if (o.threads)
        most = o.threads;
    if (bench_ranks > 2 || most < 1 || most > MAX_THREADS)
        die("threads", "takes one rank or two, and at most 64 threads");
    static struct thread threads[MAX_THREADS];
    for (int i = 0; i < most; i++)
        MPI_Comm_dup(MPI_COMM_WORLD, &threads[i].comm);
    for (int s = 0; s < o.n_sizes; s++) {
        if (o.sizes[s] < 1 || o.sizes[s] > 4096)
            die("threads", "sizes of 1 to 4096 bytes");
        for (int n = 1; n <= most; n++) {
            double rates[64];
            int repetitions = o.repetitions < 64 ? o.repetitions : 64;
            for (int r = 0; r < repetitions; r++) {
                pthread_barrier_t ready;
                atomic_int over = 0;
                pthread_barrier_init(&ready, NULL, (unsigned)n);
                MPI_Barrier(MPI_COMM_WORLD);
                for (int i = 0; i < n; i++) {
                    struct thread *t = &threads[i];
                    t->peer = bench_ranks - 1 - bench_rank;
                    t->place = bench_rank * n + i;
                    t->bytes = (int)o.sizes[s];
                    t->seconds = 3 * o.rep_seconds;
                    t->ready = &ready;
                    t->over = &over;
                    if (pthread_create(&t->id, NULL, exchange, t))
                        die("threads", "no thread");
                }
                rates[r] = 0;
                for (int i = 0; i < n; i++) {
                    pthread_join(threads[i].id, NULL);
                    rates[r] += threads[i].rate;
                }
                pthread_barrier_destroy(&ready);
            }
            bench_threads = n;
            print_value(&o, "threads", o.sizes[s], "msg/s", median(rates, repetitions));
        }
    }
    MPI_Finalize();
    return 0;
}
