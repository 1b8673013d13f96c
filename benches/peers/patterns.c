/* Tasks with the dependences of a pattern, as a program of messages: non-blocking receives and
 * sends of each step, a wait for all, then the tasks of the rank in order; `bulk` has a barrier
 * between. The same patterns, kernel, validation and line of JSON as `osier bench patterns`,
 * whose module says what they are. Also built against Osier's own C library.
 *
 * One process a core; points go to ranks by blocks; one message for each edge between ranks,
 * inputs from the rank itself are copied. Memory and tables of edges are timed, as there.
 *
 *   patterns --pattern stencil_1d --program nonblocking --points 8
 *            --kernel 4096,2048 --steps 100,200
 *
 * Patterns, kernel and program follow E. Slaughter et al., "Task Bench: A Parameterized
 * Benchmark for Evaluating Parallel Runtime Performance", SC20. Its numbers are not results of
 * Task Bench.
 */
#include "bench.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define MAX_ROWS 64
#define MAX_POINTS 128
#define DOUBLES 64
#define CELL_WORDS 2

enum pattern {
    TRIVIAL,
    NO_COMM,
    STENCIL_1D,
    STENCIL_1D_PERIODIC,
    DOM,
    TREE,
    FFT,
    ALL_TO_ALL,
    NEAREST,
    SPREAD,
    RANDOM_NEAREST,
    PATTERNS
};

static const char *const pattern_names[PATTERNS] = {
    "trivial", "no_comm",    "stencil_1d", "stencil_1d_periodic", "dom",           "tree",
    "fft",     "all_to_all", "nearest",    "spread",              "random_nearest"};

struct graph {
    enum pattern pattern;
    long steps, width, radix, period;
    double fraction;
};

/* The kernel. */

static volatile double sink;

static double begin(int vector)
{
    return -0.5 - vector / 1024.0;
}

static void kernel_plain(long iterations)
{
    double values[DOUBLES], sum = 0;
    for (int i = 0; i < DOUBLES; i++)
        values[i] = begin(i / 4);
    for (long n = 0; n < iterations; n++)
        for (int i = 0; i < DOUBLES; i++)
            values[i] = values[i] * values[i] + values[i];
    for (int i = 0; i < DOUBLES; i++)
        sum += values[i];
    sink = sum;
}

#if defined(__x86_64__)
/* Sixteen vectors fill the registers. Written out: some compilers keep an array in memory. */
#define EACH(f)                                                                                   \
    f(0) f(1) f(2) f(3) f(4) f(5) f(6) f(7) f(8) f(9) f(10) f(11) f(12) f(13) f(14) f(15)
#define DECLARE(i) __m256d a##i = _mm256_set1_pd(begin(i));
#define STEP(i) a##i = _mm256_fmadd_pd(a##i, a##i, a##i);
#define STORE(i) _mm256_store_pd(values + 4 * i, a##i);

__attribute__((target("avx2,fma"))) static void kernel_fused(long iterations)
{
    double values[DOUBLES] __attribute__((aligned(32)));
    EACH(DECLARE)
    for (long n = 0; n < iterations; n++) {
        EACH(STEP)
    }
    EACH(STORE)
    __asm__ volatile("" : : "r"(values) : "memory");
}
#endif

static void (*kernel)(long) = kernel_plain;

static void choose_kernel(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        kernel = kernel_fused;
#endif
}

/* Draws of random_nearest: SipHash-2-4 (Aumasson and Bernstein, INDOCRYPT 2012). */

static uint64_t rotated(uint64_t x, int by)
{
    return x << by | x >> (64 - by);
}

static void sip_round(uint64_t v[4])
{
    v[0] += v[1];
    v[2] += v[3];
    v[1] = rotated(v[1], 13) ^ v[0];
    v[3] = rotated(v[3], 16) ^ v[2];
    v[0] = rotated(v[0], 32);
    v[2] += v[1];
    v[0] += v[3];
    v[1] = rotated(v[1], 17) ^ v[2];
    v[3] = rotated(v[3], 21) ^ v[0];
    v[2] = rotated(v[2], 32);
}

static double uniform(const uint64_t *words, int n)
{
    /* The key's bytes are 1 to 15, then 0. */
    const uint64_t k0 = 0x0807060504030201u, k1 = 0x000f0e0d0c0b0a09u;
    uint64_t v[4] = {k0 ^ 0x736f6d6570736575u, k1 ^ 0x646f72616e646f6du, k0 ^ 0x6c7967656e657261u,
                     k1 ^ 0x7465646279746573u};
    for (int i = 0; i <= n; i++) {
        uint64_t m = i < n ? words[i] : (uint64_t)(8 * n) << 56;
        v[3] ^= m;
        sip_round(v);
        sip_round(v);
        v[0] ^= m;
    }
    v[2] ^= 0xff;
    for (int i = 0; i < 4; i++)
        sip_round(v);
    return (double)(v[0] ^ v[1] ^ v[2] ^ v[3]) * 0x1p-64;
}

/* Dependences. */

static long at_least(long a, long b)
{
    return a > b ? a : b;
}

static long at_most(long a, long b)
{
    return a < b ? a : b;
}

/* Points first to end - 1 of a step. */
static void row(const struct graph *g, long t, long *first, long *end)
{
    *first = 0;
    *end = g->width;
    if (g->pattern == DOM) {
        *first = at_least(0, t + g->width - g->steps);
        *end = *first + at_most(g->width, at_most(t + 1, g->steps - t));
    } else if (g->pattern == TREE && t < 32) {
        *end = at_most(g->width, 1L << t);
    }
}

static long sets(const struct graph *g)
{
    long n = 0;
    if (g->pattern == SPREAD || g->pattern == RANDOM_NEAREST)
        return g->period;
    if (g->pattern != FFT)
        return 1;
    while (1L << n < g->width)
        n++;
    return n;
}

static long set_at(const struct graph *g, long t)
{
    return g->pattern == FFT ? (t + sets(g) - 1) % sets(g) : t % sets(g);
}

/* What point i needs by a set, in the order of the contract; its length. `out` has room for the
 * width of the graph. */
static int dependences(const struct graph *g, long set, long i, long *out)
{
    long w = g->width, from = i, to = i; /* a window, both ends included */
    int n = 0;
    switch (g->pattern) {
    case TRIVIAL:
        return 0;
    case NO_COMM:
        break;
    case STENCIL_1D:
        from = i - 1, to = i + 1;
        break;
    case STENCIL_1D_PERIODIC:
        out[0] = i ? i - 1 : 0;
        out[1] = i ? i : 1;
        out[2] = i ? (i + 1) % w : w - 1;
        return 3;
    case DOM:
        from = i - 1;
        break;
    case TREE:
        out[0] = i / 2;
        return 1;
    case FFT:
        for (int side = -1; side <= 1; side++) {
            long j = i + side * (1L << set);
            if (j >= 0 && j < w)
                out[n++] = j;
        }
        return n;
    case ALL_TO_ALL:
        from = 0, to = w - 1;
        break;
    case SPREAD:
        for (long k = 0; k < g->radix; k++)
            out[n++] = (i + k * w / g->radix + (k ? set : 0)) % w;
        return n;
    case NEAREST:
    case RANDOM_NEAREST:
        if (!g->radix)
            return 0;
        from = i - g->radix / 2, to = i + (g->radix - 1) / 2;
        break;
    case PATTERNS:
        return 0;
    }
    for (long j = at_least(from, 0); j <= at_most(to, w - 1); j++) {
        uint64_t words[5] = {0, (uint64_t)g->radix, (uint64_t)set, (uint64_t)j, (uint64_t)i};
        if (g->pattern != RANDOM_NEAREST || i == j || uniform(words, 5) < g->fraction)
            out[n++] = j;
    }
    return n;
}

static int is_in(long point, long first, long end)
{
    return point >= first && point < end;
}

/* Of the first 64 steps (FNV-1a): that all programs have the same graph. */
static uint64_t digest(const struct graph *g)
{
    uint64_t hash = 0xcbf29ce484222325u;
    long *needs = malloc(sizeof *needs * (size_t)g->width);
    for (long t = 1; t < at_most(g->steps, 64); t++) {
        long first, end, before, before_end;
        row(g, t, &first, &end);
        row(g, t - 1, &before, &before_end);
        for (long i = first; i < end; i++) {
            int n = dependences(g, set_at(g, t), i, needs);
            for (int k = 0; k < n; k++)
                if (is_in(needs[k], before, before_end)) {
                    hash = (hash ^ (uint64_t)t) * 0x100000001b3u;
                    hash = (hash ^ (uint64_t)i) * 0x100000001b3u;
                    hash = (hash ^ (uint64_t)needs[k]) * 0x100000001b3u;
                }
        }
    }
    free(needs);
    return hash;
}

/* The program. */

struct edge {
    long point;
    int rank, tag;
};

/* Edges of a point in one set; outputs to other ranks only. */
struct edges {
    struct edge *inputs, *outputs;
    int n_inputs, n_outputs;
};

static long first_of(const struct graph *g, int rank)
{
    return rank * g->width / bench_ranks;
}

static int rank_of(const struct graph *g, long point)
{
    return (int)(((point + 1) * bench_ranks + g->width - 1) / g->width - 1);
}

static int tag_of(const struct graph *g, long producer, long consumer)
{
    return (int)((producer - first_of(g, rank_of(g, producer))) * 256 + consumer -
                 first_of(g, rank_of(g, consumer)));
}

/* Fills the edges of all points of this rank in one set. */
static void edges_of(const struct graph *g, long set, long begins, long ends, struct edges *edges)
{
    size_t w = (size_t)g->width;
    long *needs = malloc(sizeof *needs * w);
    for (long i = begins; i < ends; i++) {
        struct edges *e = edges + (i - begins);
        e->inputs = malloc(sizeof *e->inputs * w);
        e->outputs = malloc(sizeof *e->outputs * w);
        e->n_inputs = e->n_outputs = 0;
    }
    for (long i = 0; i < g->width; i++) {
        int n = dependences(g, set, i, needs);
        for (int k = 0; k < n; k++) {
            long j = needs[k];
            int tag = tag_of(g, j, i);
            if (is_in(i, begins, ends)) {
                struct edges *e = edges + (i - begins);
                e->inputs[e->n_inputs++] = (struct edge){j, rank_of(g, j), tag};
            } else if (is_in(j, begins, ends)) {
                struct edges *e = edges + (j - begins);
                e->outputs[e->n_outputs++] = (struct edge){i, rank_of(g, i), tag};
            }
        }
    }
    free(needs);
}

static void check(const uint64_t *input, int words, long step, long point)
{
    for (int w = 0; w < words; w += CELL_WORDS)
        if (input[w] != (uint64_t)step || input[w + 1] != (uint64_t)point) {
            fprintf(stderr,
                    "patterns: an input is of step %ld, point %ld, expected step %ld, point %ld\n",
                    (long)input[w], (long)input[w + 1], step, point);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
}

/* All steps: the memory that they need included. */
static void schedule(const struct graph *g, long iterations, int words, int bulk)
{
    long begins = first_of(g, bench_rank), ends = first_of(g, bench_rank + 1);
    int own = (int)(ends - begins), n_sets = (int)sets(g), most = 1, all = 1;
    struct edges *table = malloc(sizeof *table * (size_t)(n_sets * own));
    for (int set = 0; set < n_sets; set++) {
        int requests = 0;
        struct edges *edges = table + set * own;
        edges_of(g, set, begins, ends, edges);
        for (int p = 0; p < own; p++) {
            most = (int)at_least(most, edges[p].n_inputs);
            requests += edges[p].n_inputs + edges[p].n_outputs;
        }
        all = (int)at_least(all, requests);
    }
    MPI_Request *requests = malloc(sizeof *requests * (size_t)all);
    size_t bytes = sizeof(uint64_t) * (size_t)words;
    uint64_t *inputs = malloc(bytes * (size_t)(own * most));
    uint64_t *outputs = malloc(bytes * (size_t)own);
    long before = 0, before_end = 0;
    for (long t = 0; t < g->steps; t++) {
        long first, end;
        row(g, t, &first, &end);
        const struct edges *edges = table + set_at(g, t) * own;
        if (t) {
            int posted = 0;
            for (long i = begins; i < ends; i++) {
                const struct edges *e = edges + (i - begins);
                uint64_t *input = inputs + (i - begins) * most * words;
                for (int k = 0; is_in(i, first, end) && k < e->n_inputs; k++) {
                    const struct edge *from = e->inputs + k;
                    if (!is_in(from->point, before, before_end))
                        continue;
                    if (from->rank == bench_rank)
                        memcpy(input, outputs + (from->point - begins) * words, bytes);
                    else
                        MPI_Irecv(input, (int)bytes, MPI_BYTE, from->rank, from->tag,
                                  MPI_COMM_WORLD, requests + posted++);
                    input += words;
                }
                for (int k = 0; is_in(i, before, before_end) && k < e->n_outputs; k++) {
                    const struct edge *to = e->outputs + k;
                    if (is_in(to->point, first, end))
                        MPI_Isend(outputs + (i - begins) * words, (int)bytes, MPI_BYTE, to->rank,
                                  to->tag, MPI_COMM_WORLD, requests + posted++);
                }
            }
            MPI_Waitall(posted, requests, MPI_STATUSES_IGNORE);
            if (bulk)
                MPI_Barrier(MPI_COMM_WORLD);
        }
        for (long i = at_least(begins, first); i < at_most(ends, end); i++) {
            const struct edges *e = edges + (i - begins);
            const uint64_t *input = inputs + (i - begins) * most * words;
            for (int k = 0; t && k < e->n_inputs; k++) {
                if (!is_in(e->inputs[k].point, before, before_end))
                    continue;
                check(input, words, t - 1, e->inputs[k].point);
                input += words;
            }
            uint64_t *output = outputs + (i - begins) * words;
            for (int w = 0; w < words; w += CELL_WORDS) {
                output[w] = (uint64_t)t;
                output[w + 1] = (uint64_t)i;
            }
            kernel(iterations);
        }
        before = first;
        before_end = end;
    }
    for (int at = 0; at < n_sets * own; at++) {
        free(table[at].inputs);
        free(table[at].outputs);
    }
    free(table);
    free(requests);
    free(inputs);
    free(outputs);
}

/* Options. */

static int numbers(const char *text, long *out)
{
    int n = 0;
    while (*text) {
        char *end;
        if (n == MAX_ROWS)
            die("too many numbers", text);
        out[n++] = strtol(text, &end, 10);
        if (end == text || (*end && *end != ','))
            die("not a list of numbers", text);
        text = *end ? end + 1 : end;
    }
    return n;
}

int main(int argc, char **argv)
{
    struct graph g = {STENCIL_1D, 0, 0, 3, 3, 0.25};
    const char *pattern = "stencil_1d", *program = "nonblocking";
    long points = 8, output = 16, repetitions = 5, kernels[MAX_ROWS], steps[MAX_ROWS];
    int n = 0, n_steps = 0;
    bench_init(&argc, &argv);
    choose_kernel();
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        if (i + 1 == argc)
            die("unknown option or missing value", a);
        const char *v = argv[++i];
        if (!strcmp(a, "--pattern"))
            pattern = v;
        else if (!strcmp(a, "--program"))
            program = v;
        else if (!strcmp(a, "--points"))
            points = atol(v);
        else if (!strcmp(a, "--kernel"))
            n = numbers(v, kernels);
        else if (!strcmp(a, "--steps"))
            n_steps = numbers(v, steps);
        else if (!strcmp(a, "--radix"))
            g.radix = atol(v);
        else if (!strcmp(a, "--period"))
            g.period = atol(v);
        else if (!strcmp(a, "--fraction"))
            g.fraction = atof(v);
        else if (!strcmp(a, "--output"))
            output = atol(v);
        else if (!strcmp(a, "--repetitions"))
            repetitions = atol(v);
        else
            die("unknown option", a);
    }
    int at = 0;
    while (at < PATTERNS && strcmp(pattern, pattern_names[at]))
        at++;
    if (at == PATTERNS)
        die("no such pattern", pattern);
    g.pattern = (enum pattern)at;
    int bulk = !strcmp(program, "bulk");
    if (!bulk && strcmp(program, "nonblocking"))
        die("no such program (nonblocking, bulk)", program);
    g.width = points * bench_ranks;
    if (!n || n != n_steps)
        die("patterns", "--kernel and --steps take as many numbers");
    if (points < 1 || points > MAX_POINTS || repetitions < 1)
        die("out of range", "--points or --repetitions");
    if (output < 16 || output % 16 || output > 1 << 24)
        die("out of range", "--output");
    int periodic = g.pattern == SPREAD || g.pattern == RANDOM_NEAREST;
    if ((periodic && g.period < 1) || g.radix < (g.pattern == SPREAD) ||
        (g.pattern == SPREAD &&
         (g.width < g.radix || g.period > (g.width + g.radix - 1) / g.radix)) ||
        (g.pattern == STENCIL_1D_PERIODIC && g.width < 3) || (g.pattern == FFT && g.width < 2))
        die("no such graph of so few points", pattern);
    for (int r = 0; r < n; r++) {
        g.steps = steps[r];
        if (g.steps < 1 || (g.pattern == DOM && g.steps < 2 * g.width))
            die("out of range", "--steps");
        double seconds = 0;
        /* The first one warms up. */
        for (long repetition = 0; repetition <= repetitions; repetition++) {
            MPI_Barrier(MPI_COMM_WORLD);
            double start = now();
            schedule(&g, kernels[r], (int)(output / 8), bulk);
            MPI_Barrier(MPI_COMM_WORLD);
            if (repetition)
                seconds += (now() - start) / (double)repetitions;
        }
        long tasks = 0;
        for (long t = 0; t < g.steps; t++) {
            long first, end;
            row(&g, t, &first, &end);
            tasks += end - first;
        }
        double flops = (double)tasks * (double)(2 * DOUBLES * kernels[r] + DOUBLES);
        if (!bench_rank) {
            printf("{\"bench\":\"patterns\",\"pattern\":\"%s\",\"program\":\"%s\",\"ranks\":%d,"
                   "\"workers\":1,\"block\":1,\"width\":%ld,\"steps\":%ld,\"iterations\":%ld,"
                   "\"output_bytes\":%ld,\"tasks\":%ld,\"graph\":\"%016llx\",\"seconds\":%.9g,"
                   "\"flops_per_s\":%.9g}\n",
                   pattern, program, bench_ranks, g.width, g.steps, kernels[r], output, tasks,
                   (unsigned long long)digest(&g), seconds, flops / seconds);
            fflush(stdout);
        }
    }
    MPI_Finalize();
    return 0;
}
