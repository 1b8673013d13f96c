/* Shared parts of the peers' benchmark programs: options, buffers, clock,
 * medians and the line of JSON that `cargo xtask compare` reads.
 *
 * The programs are plain MPI and are built unchanged against each peer, so
 * that the columns of one table differ in the library alone.
 *
 * A measurement is a number of repetitions; a repetition runs the same body n
 * times between two readings of the clock, n found during warm-up so that one
 * repetition lasts about `rep_seconds`. What is printed is the median over the
 * repetitions.
 */
#ifndef OSIER_PEER_BENCH_H
#define OSIER_PEER_BENCH_H

#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAX_SIZES 64
#define MAX_WINDOW 1024
/* Rotation walks a pool of this size in every direction: four such pools in a
 * ping-pong of two ranks exceed any last-level cache known to us. */
#define POOL_BYTES ((size_t)128 << 20)
/* Slots of a rotated pool lie at least a page and a line apart, so that
 * neither a stream prefetcher nor one cache set decides the result. */
#define MIN_SLOT_BYTES ((size_t)4160)

struct options {
    size_t sizes[MAX_SIZES];
    int n_sizes;
    int repetitions;
    long iterations; /* 0: found during warm-up */
    double rep_seconds;
    int window;
    int rotate;
    int overlap; /* all receives of a window share one buffer */
    int heap;    /* MPI_Alloc_mem instead of the C library's allocator */
    int threads; /* most threads of a rank, of threads alone */
    const char *layout;
    const char *shapes; /* file, of datatype alone */
    const char *collective; /* of collectives and of accesses alone */
};

static int bench_rank, bench_ranks, bench_threads = 1;

static void die(const char *what, const char *arg)
{
    fprintf(stderr, "%s: %s\n", what, arg);
    exit(2);
}

static size_t parse_size(const char *text, char **end)
{
    size_t v = strtoull(text, end, 10);
    if (**end == 'K' || **end == 'k')
        v <<= 10, (*end)++;
    else if (**end == 'M' || **end == 'm')
        v <<= 20, (*end)++;
    return v;
}

static void parse_sizes(struct options *o, const char *text)
{
    o->n_sizes = 0;
    while (*text) {
        char *end;
        if (o->n_sizes == MAX_SIZES)
            die("too many sizes", text);
        o->sizes[o->n_sizes++] = parse_size(text, &end);
        if (end == text || (*end && *end != ','))
            die("not a list of sizes", text);
        text = *end ? end + 1 : end;
    }
}

static void parse_options(struct options *o, int argc, char **argv, const char *default_sizes)
{
    memset(o, 0, sizeof *o);
    o->repetitions = 9;
    o->rep_seconds = 0.01;
    o->window = 64;
    o->layout = "contiguous";
    o->collective = "barrier";
    parse_sizes(o, default_sizes);
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        if (!strcmp(a, "--rotate")) {
            o->rotate = 1;
            continue;
        }
        if (!strcmp(a, "--overlap")) {
            o->overlap = 1;
            continue;
        }
        if (i + 1 == argc)
            die("unknown option or missing value", a);
        const char *v = argv[++i];
        if (!strcmp(a, "--sizes"))
            parse_sizes(o, v);
        else if (!strcmp(a, "--repetitions"))
            o->repetitions = atoi(v);
        else if (!strcmp(a, "--iterations"))
            o->iterations = atol(v);
        else if (!strcmp(a, "--seconds"))
            o->rep_seconds = atof(v);
        else if (!strcmp(a, "--window"))
            o->window = atoi(v);
        else if (!strcmp(a, "--memory"))
            o->heap = !strcmp(v, "heap");
        else if (!strcmp(a, "--threads"))
            o->threads = atoi(v);
        else if (!strcmp(a, "--layout"))
            o->layout = v;
        else if (!strcmp(a, "--shapes"))
            o->shapes = v;
        else if (!strcmp(a, "--collective"))
            o->collective = v;
        else
            die("unknown option", a);
    }
    if (o->window < 1 || o->window > MAX_WINDOW || o->repetitions < 1)
        die("out of range", "--window or --repetitions");
}

/* The launchers differ in how (and whether) they bind; binding here, before
 * MPI_Init reads the mask, gives every peer the same: rank r on core r modulo
 * the number of cores that we were started with. */
static void pin(void)
{
    static const char *const names[] = {"OSIER_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK",
                                        "PMIX_RANK"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *rank = getenv(names[i]);
        if (!rank)
            continue;
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET((int)(atol(rank) % sysconf(_SC_NPROCESSORS_ONLN)), &one);
        sched_setaffinity(0, sizeof one, &one);
        return;
    }
}

static void bench_init(int *argc, char ***argv)
{
    pin();
    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &bench_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &bench_ranks);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A set of equal slots, walked round: one slot when buffers are reused. */
struct pool {
    char *base;
    size_t slot_bytes, n_slots, next;
    int heap;
};

static size_t round_up(size_t v, size_t to)
{
    return (v + to - 1) / to * to;
}

static struct pool pool_new(const struct options *o, size_t bytes, size_t reused_slots, char fill)
{
    struct pool p = {0};
    p.heap = o->heap;
    p.slot_bytes = round_up(bytes ? bytes : 1, 64);
    p.n_slots = reused_slots;
    if (o->rotate) {
        if (p.slot_bytes < MIN_SLOT_BYTES)
            p.slot_bytes = MIN_SLOT_BYTES;
        p.n_slots = POOL_BYTES / p.slot_bytes;
        if (p.n_slots < reused_slots)
            p.n_slots = reused_slots;
    }
    size_t all = p.slot_bytes * p.n_slots;
    if (p.heap) {
        if (MPI_Alloc_mem((MPI_Aint)all, MPI_INFO_NULL, &p.base) != MPI_SUCCESS)
            die("no memory", "MPI_Alloc_mem");
    } else if (posix_memalign((void **)&p.base, 4096, all)) {
        die("no memory", "posix_memalign");
    }
    memset(p.base, fill, all);
    return p;
}

static char *pool_next(struct pool *p)
{
    char *slot = p->base + p->next * p->slot_bytes;
    if (++p->next == p->n_slots)
        p->next = 0;
    return slot;
}

static void pool_free(struct pool *p)
{
    if (p->heap)
        MPI_Free_mem(p->base);
    else
        free(p->base);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : 0.5 * (v[n / 2 - 1] + v[n / 2]);
}

/* Runs `body(n, state)` on every rank and returns the median seconds of one
 * iteration as rank 0 saw it. */
static double measure(const struct options *o, void (*body)(long n, void *state), void *state)
{
    long n = o->iterations ? o->iterations : 1;
    for (;;) {
        /* The shortest of five: where ranks share cores, the first iterations of
         * all wait for ranks that are still starting. */
        double took = 0;
        for (int i = 0; i < 5; i++) {
            MPI_Barrier(MPI_COMM_WORLD);
            double start = now();
            body(n, state);
            double one = now() - start;
            took = i == 0 || one < took ? one : took;
        }
        long next = n;
        if (!o->iterations && took < 0.5 * o->rep_seconds) {
            double scale = took > 0 ? o->rep_seconds / took : 8;
            next = (long)((double)n * (scale > 8 ? 8 : scale)) + 1;
        }
        MPI_Bcast(&next, 1, MPI_LONG, 0, MPI_COMM_WORLD);
        if (next == n)
            break;
        n = next;
    }
    double *seconds = malloc(sizeof *seconds * (size_t)o->repetitions);
    for (int r = 0; r < o->repetitions; r++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double start = now();
        body(n, state);
        seconds[r] = (now() - start) / (double)n;
    }
    double m = median(seconds, o->repetitions);
    free(seconds);
    return m;
}

static void print_value(const struct options *o, const char *bench, size_t bytes, const char *unit,
                        double value)
{
    if (bench_rank)
        return;
    printf("{\"bench\":\"%s\",\"layout\":\"%s\",\"memory\":\"%s%s\",\"ranks\":%d,"
           "\"threads\":%d,\"bytes\":%zu,\"unit\":\"%s\",\"value\":%.9g}\n",
           bench, o->layout, o->heap ? "heap" : "plain", o->rotate ? "-rotated" : "", bench_ranks,
           bench_threads, bytes, unit, value);
    fflush(stdout);
}

#endif
