/* Commit, pack, unpack and ping-pong of many shapes, which `osier bench
 * datatype --export` has written: a line each,
 *   NAME COUNT both|send BYTES LOW HIGH CHECKSUM TYPE
 * with the type as in datatype/corpus/src/spelling.rs. The checksum of the
 * packed pattern shows that both sides mean the same bytes in the same order.
 */
#include "bench.h"

/* A type as parsed; building it from here costs MPI's calls alone. */
struct node {
    char kind[4];
    long n, block;
    long long stride; /* or lower bound */
    long long extent;
    int *lengths, *places;
    MPI_Aint *far_places;
    int *sizes, *subsizes, *starts, order;
    MPI_Datatype basic;
    struct node **olds; /* one, but for structs */
    long n_olds;
};

static char *text, *cursor;

static const char *word(void)
{
    while (*cursor == ' ')
        cursor++;
    char *start = cursor;
    while (*cursor && *cursor != ' ' && *cursor != '\n')
        cursor++;
    if (*cursor)
        *cursor++ = 0;
    return start;
}

static long long integer(void)
{
    return strtoll(word(), NULL, 10);
}

static int narrow(long long v)
{
    if (v != (int)v)
        die("does not fit an int of MPI's calls", "shape");
    return (int)v;
}

static MPI_Datatype basic_type(const char *name)
{
    if (!strcmp(name, "u8") || !strcmp(name, "byte") || !strcmp(name, "i8"))
        return MPI_UNSIGNED_CHAR;
    if (!strcmp(name, "i16") || !strcmp(name, "u16") || !strcmp(name, "bf16") || !strcmp(name, "f16"))
        return MPI_SHORT;
    if (!strcmp(name, "i32") || !strcmp(name, "u32"))
        return MPI_INT;
    if (!strcmp(name, "i64") || !strcmp(name, "u64"))
        return MPI_INT64_T;
    if (!strcmp(name, "f32"))
        return MPI_FLOAT;
    if (!strcmp(name, "f64"))
        return MPI_DOUBLE;
    if (!strcmp(name, "c32"))
        return MPI_C_FLOAT_COMPLEX;
    if (!strcmp(name, "c64"))
        return MPI_C_DOUBLE_COMPLEX;
    die("unknown predefined type", name);
    return MPI_BYTE;
}

static void *array(long n, size_t bytes)
{
    void *p = malloc(n ? (size_t)n * bytes : 1);
    if (!p)
        die("no memory", "shape");
    return p;
}

static struct node *parse(void)
{
    struct node *t = calloc(1, sizeof *t);
    snprintf(t->kind, sizeof t->kind, "%s", word());
    t->n_olds = 1;
    if (!strcmp(t->kind, "b")) {
        t->basic = basic_type(word());
        t->n_olds = 0;
    } else if (!strcmp(t->kind, "c")) {
        t->n = integer();
    } else if (!strcmp(t->kind, "v") || !strcmp(t->kind, "hv")) {
        t->n = integer();
        t->block = integer();
        t->stride = integer();
    } else if (!strcmp(t->kind, "i") || !strcmp(t->kind, "hi")) {
        t->n = integer();
        t->lengths = array(t->n, sizeof *t->lengths);
        t->places = array(t->n, sizeof *t->places);
        t->far_places = array(t->n, sizeof *t->far_places);
        for (long i = 0; i < t->n; i++) {
            t->lengths[i] = narrow(integer());
            t->far_places[i] = integer();
            if (t->kind[0] == 'i')
                t->places[i] = narrow(t->far_places[i]);
        }
    } else if (!strcmp(t->kind, "ib") || !strcmp(t->kind, "hib")) {
        t->n = integer();
        t->block = integer();
        t->places = array(t->n, sizeof *t->places);
        t->far_places = array(t->n, sizeof *t->far_places);
        for (long i = 0; i < t->n; i++) {
            t->far_places[i] = integer();
            if (t->kind[0] == 'i')
                t->places[i] = narrow(t->far_places[i]);
        }
    } else if (!strcmp(t->kind, "s")) {
        t->n = t->n_olds = integer();
        t->lengths = array(t->n, sizeof *t->lengths);
        t->far_places = array(t->n, sizeof *t->far_places);
        t->olds = array(t->n, sizeof *t->olds);
        for (long i = 0; i < t->n; i++) {
            t->lengths[i] = narrow(integer());
            t->far_places[i] = integer();
            t->olds[i] = parse();
        }
        return t;
    } else if (!strcmp(t->kind, "a")) {
        t->order = *word() == 'C' ? MPI_ORDER_C : MPI_ORDER_FORTRAN;
        t->n = integer();
        int **lists[] = {&t->sizes, &t->subsizes, &t->starts};
        for (int k = 0; k < 3; k++) {
            *lists[k] = array(t->n, sizeof(int));
            for (long i = 0; i < t->n; i++)
                (*lists[k])[i] = narrow(integer());
        }
    } else if (!strcmp(t->kind, "r")) {
        t->stride = integer();
        t->extent = integer();
    } else {
        die("unknown constructor", t->kind);
    }
    if (t->n_olds) {
        t->olds = array(1, sizeof *t->olds);
        t->olds[0] = parse();
    }
    return t;
}

static void forget(struct node *t)
{
    for (long i = 0; i < t->n_olds; i++)
        forget(t->olds[i]);
    free(t->olds);
    free(t->lengths);
    free(t->places);
    free(t->far_places);
    free(t->sizes);
    free(t->subsizes);
    free(t->starts);
    free(t);
}

static MPI_Datatype build(const struct node *t)
{
    MPI_Datatype made, one = MPI_DATATYPE_NULL, *olds = &one;
    int n = (int)t->n;
    if (t->kind[0] == 'b')
        return t->basic;
    if (t->n_olds != 1 && t->n_olds)
        olds = malloc(sizeof *olds * (size_t)t->n_olds);
    for (long i = 0; i < t->n_olds; i++)
        olds[i] = build(t->olds[i]);
    if (!strcmp(t->kind, "c"))
        MPI_Type_contiguous(n, *olds, &made);
    else if (!strcmp(t->kind, "v"))
        MPI_Type_vector(n, (int)t->block, narrow(t->stride), *olds, &made);
    else if (!strcmp(t->kind, "hv"))
        MPI_Type_create_hvector(n, (int)t->block, (MPI_Aint)t->stride, *olds, &made);
    else if (!strcmp(t->kind, "i"))
        MPI_Type_indexed(n, t->lengths, t->places, *olds, &made);
    else if (!strcmp(t->kind, "hi"))
        MPI_Type_create_hindexed(n, t->lengths, t->far_places, *olds, &made);
    else if (!strcmp(t->kind, "ib"))
        MPI_Type_create_indexed_block(n, (int)t->block, t->places, *olds, &made);
    else if (!strcmp(t->kind, "hib"))
        MPI_Type_create_hindexed_block(n, (int)t->block, t->far_places, *olds, &made);
    else if (!strcmp(t->kind, "s"))
        MPI_Type_create_struct(n, t->lengths, t->far_places, olds, &made);
    else if (!strcmp(t->kind, "a"))
        MPI_Type_create_subarray(n, t->sizes, t->subsizes, t->starts, t->order, *olds, &made);
    else
        MPI_Type_create_resized(*olds, (MPI_Aint)t->stride, (MPI_Aint)t->extent, &made);
    for (long i = 0; i < t->n_olds; i++)
        if (t->olds[i]->kind[0] != 'b')
            MPI_Type_free(&olds[i]);
    if (olds != &one)
        free(olds);
    return made;
}

struct state {
    const struct node *tree;
    MPI_Datatype type;
    int count, room;
    char *from, *to, *packed;
};

static void commit(long n, void *arg)
{
    struct state *s = arg;
    for (long i = 0; i < n; i++) {
        MPI_Datatype t = build(s->tree);
        if (s->tree->kind[0] == 'b')
            continue;
        MPI_Type_commit(&t);
        MPI_Type_free(&t);
    }
}

static void pack(long n, void *arg)
{
    struct state *s = arg;
    for (long i = 0; i < n; i++) {
        int position = 0;
        MPI_Pack(s->from, s->count, s->type, s->packed, s->room, &position, MPI_COMM_SELF);
    }
}

static void unpack(long n, void *arg)
{
    struct state *s = arg;
    for (long i = 0; i < n; i++) {
        int position = 0;
        MPI_Unpack(s->packed, s->room, &position, s->to, s->count, s->type, MPI_COMM_SELF);
    }
}

static void ping_pong(long n, void *arg)
{
    struct state *s = arg;
    for (long i = 0; i < n; i++) {
        if (!bench_rank) {
            MPI_Send(s->from, s->count, s->type, 1, 1, MPI_COMM_WORLD);
            MPI_Recv(s->to, s->count, s->type, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Recv(s->to, s->count, s->type, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(s->from, s->count, s->type, 0, 1, MPI_COMM_WORLD);
        }
    }
}

/* `measure` without the other rank, which waits. */
static double measure_alone(const struct options *o, void (*body)(long n, void *state), void *state)
{
    long n = o->iterations ? o->iterations : 1;
    while (!o->iterations) {
        double start = now();
        body(n, state);
        double took = now() - start;
        if (took >= 0.5 * o->rep_seconds)
            break;
        double scale = took > 0 ? o->rep_seconds / took : 8;
        n = (long)((double)n * (scale > 8 ? 8 : scale)) + 1;
    }
    double seconds[1000];
    for (int r = 0; r < o->repetitions; r++) {
        double start = now();
        body(n, state);
        seconds[r] = (now() - start) / (double)n;
    }
    return median(seconds, o->repetitions);
}

static uint64_t checksum(const char *packed, size_t bytes)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < bytes; i++)
        sum = sum * 31 + (unsigned char)packed[i];
    return sum;
}

static void print_shape(const char *measure, const char *name, size_t bytes, double seconds)
{
    if (bench_rank)
        return;
    printf("{\"bench\":\"datatype-%s\",\"layout\":\"%s\",\"memory\":\"plain\",\"ranks\":%d,"
           "\"bytes\":%zu,\"unit\":\"us\",\"value\":%.9g}\n",
           measure, name, bench_ranks, bytes, 1e6 * seconds);
    fflush(stdout);
}

static char *buffer(size_t bytes)
{
    void *p;
    if (posix_memalign(&p, 4096, bytes + 64))
        die("no memory", "posix_memalign");
    memset(p, 0, bytes + 64);
    return p;
}

static void shape(const struct options *o)
{
    char name[256];
    snprintf(name, sizeof name, "%s", word());
    struct state s = {0};
    s.count = narrow(integer());
    /* What touches a byte twice may not be received. */
    int receivable = !strcmp(word(), "both");
    size_t bytes = (size_t)integer();
    long long low = integer(), high = integer();
    uint64_t wanted = strtoull(word(), NULL, 10);
    struct node *tree = parse();
    s.tree = tree;
    s.type = build(tree);
    if (tree->kind[0] != 'b')
        MPI_Type_commit(&s.type);

    size_t span = (size_t)(high - low);
    char *from = buffer(span), *to = buffer(span);
    for (size_t i = 0; i < span; i++)
        from[i] = (char)(((uint32_t)i * 0x9E3779B1u) >> 24);
    s.from = from - low;
    s.to = to - low;
    MPI_Pack_size(s.count, s.type, MPI_COMM_SELF, &s.room);
    s.packed = buffer((size_t)s.room);
    /* What packs other bytes is not the same shape, and gets no number. */
    pack(1, &s);
    int same = checksum(s.packed, bytes) == wanted;
    if (!same && !bench_rank)
        fprintf(stderr, "%s: other bytes than osier packs\n", name);
    if (!bench_rank && same) {
        print_shape("commit", name, bytes, measure_alone(o, commit, &s));
        print_shape("pack", name, bytes, measure_alone(o, pack, &s));
        if (receivable)
            print_shape("unpack", name, bytes, measure_alone(o, unpack, &s));
    }
    if (receivable && same) {
        double t = measure(o, ping_pong, &s);
        print_shape("pingpong", name, bytes, 0.5 * t);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (tree->kind[0] != 'b')
        MPI_Type_free(&s.type);
    forget(tree);
    free(from);
    free(to);
    free(s.packed);
}

int main(int argc, char **argv)
{
    struct options o;
    bench_init(&argc, &argv);
    parse_options(&o, argc, argv, "1");
    if (bench_ranks != 2)
        die("takes two ranks", "datatype");
    FILE *file = fopen(o.shapes ? o.shapes : "", "r");
    if (!file)
        die("cannot read", "--shapes");
    fseek(file, 0, SEEK_END);
    long length = ftell(file);
    rewind(file);
    text = malloc((size_t)length + 1);
    if (fread(text, 1, (size_t)length, file) != (size_t)length)
        die("cannot read", o.shapes);
    text[length] = 0;
    fclose(file);
    for (cursor = text; *cursor;)
        shape(&o);
    free(text);
    MPI_Finalize();
    return 0;
}
