/* MPI_Pack of one value of a datatype, in MB/s (10^6) of payload.
 *
 * Layouts: contiguous; vector:B:S, blocks of B bytes every S bytes (multiples
 * of 8, made of doubles); indexed, blocks of 1 to 4 doubles with holes of 1 to
 * 4 doubles between, both drawn from one linear congruential sequence:
 *   x = 1; each block: x = 1664525 x + 1013904223 (mod 2^32),
 *   length = 1 + (x >> 16) mod 4, hole after it = 1 + (x >> 24) mod 4.
 */
#include "bench.h"

struct state {
    struct pool from, to;
    MPI_Datatype type;
    int packed_bytes;
};

static void pack(long n, void *arg)
{
    struct state *s = arg;
    for (long i = 0; i < n; i++) {
        int position = 0;
        MPI_Pack(pool_next(&s->from), 1, s->type, pool_next(&s->to), s->packed_bytes, &position,
                 MPI_COMM_SELF);
    }
}

static MPI_Datatype indexed(int doubles)
{
    int *lengths = malloc(sizeof *lengths * (size_t)doubles);
    int *places = malloc(sizeof *places * (size_t)doubles);
    uint32_t x = 1;
    int blocks = 0, at = 0, left = doubles;
    while (left > 0) {
        x = 1664525u * x + 1013904223u;
        int length = 1 + (int)((x >> 16) % 4), hole = 1 + (int)((x >> 24) % 4);
        if (length > left)
            length = left;
        lengths[blocks] = length;
        places[blocks++] = at;
        at += length + hole;
        left -= length;
    }
    MPI_Datatype t;
    MPI_Type_indexed(blocks, lengths, places, MPI_DOUBLE, &t);
    free(lengths);
    free(places);
    return t;
}

static MPI_Datatype build(const char *layout, size_t bytes)
{
    int doubles = (int)(bytes / 8), block, stride;
    MPI_Datatype t;
    if (bytes % 8)
        die("not a multiple of 8 bytes", layout);
    if (!strcmp(layout, "contiguous"))
        MPI_Type_contiguous(doubles, MPI_DOUBLE, &t);
    else if (!strcmp(layout, "indexed"))
        t = indexed(doubles);
    else if (sscanf(layout, "vector:%d:%d", &block, &stride) == 2 && block > 0 && block % 8 == 0 &&
             stride % 8 == 0 && bytes % (size_t)block == 0)
        MPI_Type_vector((int)(bytes / (size_t)block), block / 8, stride / 8, MPI_DOUBLE, &t);
    else
        die("unknown layout", layout);
    MPI_Type_commit(&t);
    return t;
}

int main(int argc, char **argv)
{
    struct options o;
    bench_init(&argc, &argv);
    parse_options(&o, argc, argv, "1M");
    for (int i = 0; i < o.n_sizes; i++) {
        struct state s;
        MPI_Aint lower, extent;
        int room;
        s.type = build(o.layout, o.sizes[i]);
        MPI_Type_get_extent(s.type, &lower, &extent);
        MPI_Pack_size(1, s.type, MPI_COMM_SELF, &room);
        s.packed_bytes = room;
        s.from = pool_new(&o, (size_t)extent, 1, 1);
        s.to = pool_new(&o, (size_t)room, 1, 0);
        double t = measure(&o, pack, &s);
        if (s.to.base[o.sizes[i] - 1] != 1)
            die("pack", "packed bytes are wrong");
        print_value(&o, "pack", o.sizes[i], "MB/s", 1e-6 * (double)o.sizes[i] / t);
        pool_free(&s.from);
        pool_free(&s.to);
        MPI_Type_free(&s.type);
    }
    MPI_Finalize();
    return 0;
}
