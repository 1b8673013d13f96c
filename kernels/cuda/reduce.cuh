// Reductions: left = left op right, element by element, both in any layout.
//
// A warp's chunk of the packed stream is found on both sides, as in copies; where both
// are one run, words of 16 bytes are combined, or of 8 that are shifted, and elsewhere
// where both sides suit words of 16 bytes, as many elements as fit go at once.
// Results are those of osier_datatype::Operator, bit for bit (but for the bits of
// a NaN that arithmetic makes): products and sums are rounded apart (--fmad=false),
// halves are computed in float and rounded once more, which gives the same as one
// rounding (24 bits are at least twice the halves' plus two).
#pragma once
#include "copy.cuh"

struct osier_reduction {
    osier_copy sides;        // from the right operand to the left, which gets the result
    osier_u32 operation;
    osier_u32 access;        // bytes of the widest aligned access inside of an element
    osier_u32 value_bytes;   // of pairs
    osier_u32 value_kind;
    osier_u32 index_bytes;
    osier_u32 index_kind;
};

enum { OSIER_SUM, OSIER_PRODUCT, OSIER_MIN, OSIER_MAX, OSIER_UNSIGNED_MIN, OSIER_UNSIGNED_MAX,
       OSIER_LOGICAL_AND, OSIER_LOGICAL_OR, OSIER_LOGICAL_XOR };

// Bytes of an element or a group of them.
template <class T, int N> union alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) osier_group {
    T lane[N];
    osier_u8 byte[sizeof(T) * N];
    __device__ __forceinline__ osier_group() {}
};

template <int P, class G> static __device__ __forceinline__ void osier_read(G& group, const osier_u8* at) {
    typedef typename osier_word<P>::type piece;
#pragma unroll
    for (int k = 0; k < (int)(sizeof(G) / P); k++) ((piece*)&group)[k] = ((const piece*)at)[k];
}

template <int P, class G> static __device__ __forceinline__ void osier_write(const G& group, osier_u8* at) {
    typedef typename osier_word<P>::type piece;
#pragma unroll
    for (int k = 0; k < (int)(sizeof(G) / P); k++) ((piece*)at)[k] = ((const piece*)&group)[k];
}

// Groups at COUNT places, of which those are read or written that `number` says are there:
// APART numbers lie between them.
template <int P, int COUNT, int APART, class G> static __device__ __forceinline__ void osier_read_each(
    G* groups, osier_u8* const* places, osier_u32 number, osier_u32 words
) {
#pragma unroll
    for (int k = 0; k < COUNT; k++) if (number + k * APART < words) osier_read<P>(groups[k], places[k]);
}

template <int P, int COUNT, int APART, class G> static __device__ __forceinline__ void osier_write_each(
    const G* groups, osier_u8* const* places, osier_u32 number, osier_u32 words
) {
#pragma unroll
    for (int k = 0; k < COUNT; k++) if (number + k * APART < words) osier_write<P>(groups[k], places[k]);
}

// The same in pieces as wide as alignment allows: whole, 4 bytes, or one. Asked once for
// all of them: loads under a condition of their own would be issued, taken or not.
template <int COUNT, int APART, class G> static __device__ __forceinline__ void osier_read_any(
    G* groups, osier_u8* const* places, osier_u32 number, osier_u32 words, osier_u32 access
) {
    const int S = sizeof(G);
    if (access >= S) osier_read_each<S, COUNT, APART>(groups, places, number, words);
    else if (S > 4 && access >= 4) osier_read_each<(S > 4 ? 4 : 1), COUNT, APART>(groups, places, number, words);
    else osier_read_each<1, COUNT, APART>(groups, places, number, words);
}

template <int COUNT, int APART, class G> static __device__ __forceinline__ void osier_write_any(
    const G* groups, osier_u8* const* places, osier_u32 number, osier_u32 words, osier_u32 access
) {
    const int S = sizeof(G);
    if (access >= S) osier_write_each<S, COUNT, APART>(groups, places, number, words);
    else if (S > 4 && access >= 4) osier_write_each<(S > 4 ? 4 : 1), COUNT, APART>(groups, places, number, words);
    else osier_write_each<1, COUNT, APART>(groups, places, number, words);
}

// The middle of two runs, 32 bytes of a lane at once: as two words of 16 bytes where both
// sides suit them; else as four of 8, of which the right ones are shifted together from
// the two aligned words around each. Elements of 16 bytes are not shifted.
struct osier_middle {
    osier_u32 head;   // bytes before the middle
    osier_u32 bytes;  // of the middle; none, if runs are too short or elements are not aligned
    osier_u32 odd;    // bytes by which the right side is off from words of 8
    bool whole;       // words of 16 bytes
};

template <int E> static __device__ __forceinline__ osier_middle osier_find_middle(
    const osier_u8* to, const osier_u8* from, osier_u32 bytes
) {
    const osier_u64 left = (osier_u64)to, right = (osier_u64)from;
    osier_middle middle = {0, 0, 0, ((left ^ right) & 15) == 0};
    if (left % E || (E > 8 && !middle.whole)) return middle;
    const osier_u32 wide = middle.whole ? 16 : 8;
    osier_u32 head = (osier_u32)(0 - left) & (wide - 1);
    middle.odd = (osier_u32)(right + head) & 7;
    // The word in front of the first one, and the one behind the last, are read, too.
    if (head < middle.odd) head += 8;
    const osier_u32 behind = middle.odd ? 8 - middle.odd : 0;
    if (bytes < head + behind) return middle;
    middle.head = head;
    middle.bytes = (bytes - head - behind) / wide * wide;
    return middle;
}

template <class O> static __device__ __forceinline__ void osier_reduce_middle(
    osier_u32 operation, const osier_middle& middle, osier_u8* to, const osier_u8* from, osier_u32 lane
) {
    typedef typename O::element T;
    const int N = 32 / (int)sizeof(T);
    union alignas(16) both {
        T lane[N];
        osier_u64 word[4];
        osier_pair pair[2];
        __device__ __forceinline__ both() {}
    };
    const osier_u32 wide = middle.whole ? 16 : 8;
    // Words of a lane lie apart by one constant or another.
    const osier_u32 PAIRS = 16 * OSIER_LANES, WORDS = 8 * OSIER_LANES;
    const osier_u32 down = 8 * middle.odd, up = 63 - down;
    to += lane * wide;
    from += lane * wide;
    for (osier_u32 at = lane * wide; at < middle.bytes; at += 32 * OSIER_LANES) {
        both left, right;
        if (middle.whole) {
#pragma unroll
            for (int k = 0; k < 2; k++) {
                if (at + k * PAIRS < middle.bytes) {
                    right.pair[k] = *(const osier_pair*)(from + k * PAIRS);
                    left.pair[k] = *(const osier_pair*)(to + k * PAIRS);
                }
            }
        } else {
            osier_u64 next[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                if (at + k * WORDS < middle.bytes) {
                    const osier_u64* const low = (const osier_u64*)(from + k * WORDS - middle.odd);
                    right.word[k] = low[0];
                    next[k] = middle.odd ? low[1] : 0;
                    left.word[k] = *(const osier_u64*)(to + k * WORDS);
                }
            }
#pragma unroll
            for (int k = 0; k < 4; k++) right.word[k] = right.word[k] >> down | next[k] << 1 << up;
        }
        O::template apply<N>(operation, left.lane, right.lane);
        if (middle.whole) {
#pragma unroll
            for (int k = 0; k < 2; k++) {
                if (at + k * PAIRS < middle.bytes) *(osier_pair*)(to + k * PAIRS) = left.pair[k];
            }
        } else {
#pragma unroll
            for (int k = 0; k < 4; k++) {
                if (at + k * WORDS < middle.bytes) *(osier_u64*)(to + k * WORDS) = left.word[k];
            }
        }
        to += 32 * OSIER_LANES;
        from += 32 * OSIER_LANES;
    }
}

// Whether a layout is one run.
static __device__ __forceinline__ bool osier_is_run(const osier_nest& nest) {
    return !(nest.dimensions | nest.boxes) && !nest.list.offsets && !nest.map;
}

// Bytes between the words of a segment that lie at equal distances; else 0.
template <int W> static __device__ __forceinline__ osier_i64 osier_distance(
    const osier_nest& nest, const osier_segment& segment
) {
    if (segment.kind & OSIER_RUN) return W;
    const bool rows = segment.kind & (OSIER_ROWS | OSIER_MAP) && nest.dimensions && !nest.dimension[0].table;
    return rows && nest.core.value == 1 ? nest.dimension[0].stride : 0;
}

// Words of W bytes at equal distances on both sides.
template <class O, int W> static __device__ __forceinline__ void osier_reduce_steps(
    osier_u32 operation, osier_u8* to, osier_i64 to_step, osier_u8* from, osier_i64 from_step, osier_u32 words,
    osier_u32 lane
) {
    typedef typename O::element T;
    typedef osier_group<T, W / (int)sizeof(T)> piece;
    const int ITEMS = 4;
    to = osier_kept(to + (osier_i64)lane * to_step);
    from = osier_kept(from + (osier_i64)lane * from_step);
    to_step *= OSIER_LANES;
    from_step *= OSIER_LANES;
    for (osier_u32 at = lane; at < words; at += ITEMS * OSIER_LANES) {
        osier_group<T, ITEMS * (W / (int)sizeof(T))> left, right;
        piece* const lefts = (piece*)left.lane;
        piece* const rights = (piece*)right.lane;
        osier_u8* places[ITEMS];
#pragma unroll
        for (int k = 0; k < ITEMS; k++) {
            places[k] = to;
            if (at + k * OSIER_LANES < words) {
                osier_read<W>(rights[k], from);
                osier_read<W>(lefts[k], to);
            }
            from = osier_kept(from + from_step);
            to = osier_kept(to + to_step);
        }
        O::template apply<ITEMS * (W / (int)sizeof(T))>(operation, left.lane, right.lane);
#pragma unroll
        for (int k = 0; k < ITEMS; k++) if (at + k * OSIER_LANES < words) osier_write<W>(lefts[k], places[k]);
    }
}

// The words of two runs before and behind their middle: fewer than 16 bytes each, so one
// of a lane at most.
template <class O, int W> static __device__ __forceinline__ void osier_reduce_ends(
    const osier_reduction& plan, const osier_middle& middle, osier_u8* to, osier_u8* from, osier_u32 words, osier_u32 lane
) {
    typedef typename O::element T;
    const int N = W / (int)sizeof(T);
    const osier_u32 skipped = middle.bytes / W, number = lane * W < middle.head ? lane : lane + skipped;
    if (number >= words) return;
    osier_group<T, N> left, right;
    osier_u8* const source = from + number * W;
    osier_u8* const target = to + number * W;
    osier_read_any<1, 1>(&right, &source, 0, 1, plan.access);
    osier_read_any<1, 1>(&left, &target, 0, 1, plan.access);
    O::template apply<N>(plan.operation, left.lane, right.lane);
    osier_write_any<1, 1>(&left, &target, 0, 1, plan.access);
}

// Words that are found one by one.
template <class O, int W> static __device__ __forceinline__ void osier_reduce_each(
    const osier_reduction& plan, const osier_segment& reads, const osier_segment& writes, osier_u32 words, osier_u32 lane
) {
    typedef typename O::element T;
    const int N = W / (int)sizeof(T);
    const int ITEMS = W <= 2 ? 8 / W : W <= 8 ? 4 : 2, APART = W <= 2 ? 1 : (int)OSIER_LANES;
    typedef osier_group<T, N> piece;
    const osier_copy& sides = plan.sides;
    const osier_u32 access = N > 1 ? W : plan.access;
    for (osier_u32 number = lane * (APART == 1 ? ITEMS : 1); number < words; number += ITEMS * OSIER_LANES) {
        osier_group<T, N * ITEMS> left, right;
        osier_u8* places[ITEMS];
        osier_find<W, ITEMS, APART>(sides.from.nest, sides.wide, reads, number, words, places);
        osier_read_any<ITEMS, APART>((piece*)right.lane, places, number, words, access);
        osier_find<W, ITEMS, APART>(sides.to.nest, sides.wide, writes, number, words, places);
        osier_read_any<ITEMS, APART>((piece*)left.lane, places, number, words, access);
        O::template apply<N * ITEMS>(plan.operation, left.lane, right.lane);
        osier_write_any<ITEMS, APART>((const piece*)left.lane, places, number, words, access);
    }
}

// Groups of W bytes; `O::apply<N>(operation, left, right)` combines N elements. A warp's
// chunk is found in both operands, as in copies.
template <class O, int W> static __device__ __forceinline__ void osier_reduce(const osier_reduction& plan) {
    typedef typename O::element T;
    const int E = sizeof(T), N = W / E;
    const osier_copy& sides = plan.sides;
    const bool wide = sides.wide, flat = osier_is_run(sides.from.nest) && osier_is_run(sides.to.nest);
    const osier_u64 first = (sides.start + (W - 1)) / W;
    const osier_u64 last = sides.end / W;
    const osier_u32 lane = threadIdx.x % OSIER_LANES;
    const osier_u64 warps = blockDim.x / OSIER_LANES;
    const osier_u64 step = gridDim.x * warps * sides.chunk;
    for (osier_u64 at = first + (blockIdx.x * warps + threadIdx.x / OSIER_LANES) * sides.chunk; at < last; at += step) {
        const osier_u32 all = (osier_u32)osier_least(sides.chunk, last - at);
        for (osier_u32 done = 0; done < all;) {
            osier_segment reads, writes;
            if (flat) {
                reads = {sides.from.layout + (at + done) * W, 0, 0, all - done, OSIER_RUN};
                writes = {sides.to.layout + (at + done) * W, 0, 0, all - done, OSIER_RUN};
            } else {
                reads = osier_open<W>(sides.from.nest, sides.from.layout, wide, at + done, all - done);
                writes = osier_open<W>(sides.to.nest, sides.to.layout, wide, at + done, all - done);
            }
            reads.base = osier_kept(reads.base);
            writes.base = osier_kept(writes.base);
            const osier_u32 words = reads.words < writes.words ? reads.words : writes.words;
            osier_middle middle = {0, 0, 0, false};
            if (reads.kind == OSIER_RUN && writes.kind == OSIER_RUN) {
                middle = osier_find_middle<E>(writes.base, reads.base, words * W);
            }
            if (middle.bytes) {
                osier_u8* const to = writes.base + middle.head;
                const osier_u8* const from = reads.base + middle.head;
                osier_reduce_middle<O>(plan.operation, middle, to, from, lane);
                if (middle.bytes < words * W) osier_reduce_ends<O, W>(plan, middle, writes.base, reads.base, words, lane);
            } else if (N == 1 && W <= 4 && plan.access >= W && osier_distance<W>(sides.from.nest, reads)
                       && osier_distance<W>(sides.to.nest, writes)) {
                const osier_i64 from_step = osier_distance<W>(sides.from.nest, reads);
                const osier_i64 to_step = osier_distance<W>(sides.to.nest, writes);
                osier_reduce_steps<O, W>(plan.operation, writes.base, to_step, reads.base, from_step, words, lane);
            } else osier_reduce_each<O, W>(plan, reads, writes, words, lane);
            done += words;
        }
    }
    // Fewer than N elements before the first group, fewer than N behind the last.
    if (N > 1 && blockIdx.x == 0 && threadIdx.x < 2 * N) {
        const bool behind = threadIdx.x >= N;
        const osier_u64 begin = first * W, until = last * W > begin ? last * W : begin;
        const osier_u64 byte = behind ? until + (threadIdx.x - N) * sizeof(T) : sides.start + threadIdx.x * sizeof(T);
        const osier_u64 stop = behind ? sides.end : (begin < sides.end ? begin : sides.end);
        if (byte < stop) {
            const osier_i64 inside = (osier_i64)(byte % W);
            T* const to = (T*)(osier_word_at<W>(sides.to.nest, sides.to.layout, wide, byte / W) + inside);
            const T* const from = (const T*)(osier_word_at<W>(sides.from.nest, sides.from.layout, wide, byte / W) + inside);
            T left[1] = {*to}, right[1] = {*from};
            O::template apply<1>(plan.operation, left, right);
            *to = left[0];
        }
    }
}

#define OSIER_EACH(RESULT)                                                     \
    _Pragma("unroll") for (int k = 0; k < N; k++) {                            \
        const auto a = left[k], b = right[k];                                  \
        left[k] = (RESULT);                                                    \
    }                                                                          \
    break

// Integers of one size; sums and products wrap, so signs matter to order alone.
template <class U, class S> struct osier_integers {
    typedef U element;
    template <int N> static __device__ __forceinline__ void apply(osier_u32 operation, U* left, const U* right) {
        switch (operation) {
        case OSIER_SUM: OSIER_EACH((U)(a + b));
        // Short ones would be multiplied as signed numbers.
        case OSIER_PRODUCT: OSIER_EACH((U)((sizeof(U) < 4 ? (osier_u32)a : a) * b));
        case OSIER_MIN: OSIER_EACH((S)b < (S)a ? b : a);
        case OSIER_MAX: OSIER_EACH((S)b > (S)a ? b : a);
        case OSIER_UNSIGNED_MIN: OSIER_EACH(b < a ? b : a);
        case OSIER_UNSIGNED_MAX: OSIER_EACH(b > a ? b : a);
        case OSIER_LOGICAL_AND: OSIER_EACH((U)(a != 0 && b != 0));
        case OSIER_LOGICAL_OR: OSIER_EACH((U)(a != 0 || b != 0));
        case OSIER_LOGICAL_XOR: OSIER_EACH((U)((a != 0) != (b != 0)));
        }
    }
};

// Words, bit by bit: 0 and, 1 or, 2 exclusive or.
template <class U> struct osier_bits_of {
    typedef U element;
    template <int N> static __device__ __forceinline__ void apply(osier_u32 operation, U* left, const U* right) {
        switch (operation) {
        case 0: OSIER_EACH((U)(a & b));
        case 1: OSIER_EACH((U)(a | b));
        case 2: OSIER_EACH((U)(a ^ b));
        }
    }
};

// IEEE binary16 as bits.
struct osier_half {
    osier_u16 bits;
    __device__ __forceinline__ float wide() const {
#ifdef __CUDA_ARCH__
        float value;
        asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
        return value;
#else
        const osier_u32 sign = (osier_u32)(bits & 0x8000) << 16, rest = (osier_u32)(bits & 0x7fff) << 13;
        if (rest >= 0x0f800000u) return __uint_as_float(sign | 0x70000000u | rest);
        // Subnormal numbers become normal ones by the product with 2^112.
        const float value = __uint_as_float(rest) * __uint_as_float(0x77800000u);
        return __uint_as_float(sign | __float_as_uint(value));
#endif
    }
    static __device__ __forceinline__ osier_half narrow(float value) {
        osier_half half;
#ifdef __CUDA_ARCH__
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half.bits) : "f"(value));
#else
        const osier_u32 all = __float_as_uint(value), rest = all & 0x7fffffffu;
        osier_u32 bits;
        if (rest > 0x7f800000u) bits = 0x7e00;
        else if (rest >= 0x477ff000u) bits = 0x7c00;
        else if (rest < 0x38800000u) {
            // The last place of a half below 2^-14 is that of a float at 0.5.
            bits = __float_as_uint(__uint_as_float(rest) + 0.5f) - 0x3f000000u;
        } else bits = (rest - 0x38000000u + 0xfffu + ((rest >> 13) & 1)) >> 13;
        half.bits = (osier_u16)(bits | ((all >> 16) & 0x8000));
#endif
        return half;
    }
};

// The upper half of a float as bits.
struct osier_brain {
    osier_u16 bits;
    __device__ __forceinline__ float wide() const { return __uint_as_float((osier_u32)bits << 16); }
    static __device__ __forceinline__ osier_brain narrow(float value) {
        const osier_u32 all = __float_as_uint(value);
        osier_brain brain;
        brain.bits = (all & 0x7fffffffu) > 0x7f800000u
            ? (osier_u16)((all >> 16) | 0x40)
            : (osier_u16)((all + 0x7fffu + ((all >> 16) & 1)) >> 16);
        return brain;
    }
};

struct osier_float {
    float value;
    __device__ __forceinline__ float wide() const { return value; }
    static __device__ __forceinline__ osier_float narrow(float value) { osier_float it; it.value = value; return it; }
};

struct osier_double {
    double value;
    __device__ __forceinline__ double wide() const { return value; }
    static __device__ __forceinline__ osier_double narrow(double value) { osier_double it; it.value = value; return it; }
};

// A NaN loses against a number; of equals the left one stays.
template <class F> struct osier_floats {
    typedef F element;
    template <int N> static __device__ __forceinline__ void apply(osier_u32 operation, F* left, const F* right) {
        switch (operation) {
        case OSIER_SUM: OSIER_EACH(F::narrow(a.wide() + b.wide()));
        case OSIER_PRODUCT: OSIER_EACH(F::narrow(a.wide() * b.wide()));
        case OSIER_MIN: OSIER_EACH(b.wide() < a.wide() || a.wide() != a.wide() ? b : a);
        case OSIER_MAX: OSIER_EACH(b.wide() > a.wide() || a.wide() != a.wide() ? b : a);
        }
    }
};

template <class F> struct osier_complex { F real, imaginary; };

// Sums of complex numbers are sums of their parts.
template <class F> struct osier_products {
    typedef osier_complex<F> element;
    template <int N> static __device__ __forceinline__ void apply(osier_u32, element* left, const element* right) {
#pragma unroll
        for (int k = 0; k < N; k++) {
            const auto a = left[k].real.wide(), b = left[k].imaginary.wide();
            const auto c = right[k].real.wide(), d = right[k].imaginary.wide();
            left[k].real = F::narrow(a * c - b * d);
            left[k].imaginary = F::narrow(a * d + b * c);
        }
    }
};
