// Reductions: left = left op right, element by element, both in any layout.
//
// An element of the packed stream finds its place on both sides, as in copies;
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
template <class T, int N> union osier_group {
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

// Reads and writes in pieces as wide as alignment allows: whole, 4 bytes, or one.
template <class G> static __device__ __forceinline__ void osier_read_any(G& group, const osier_u8* at, osier_u32 access) {
    const int S = sizeof(G);
    if (access >= S) osier_read<S>(group, at);
    else if (S > 4 && access >= 4) osier_read<(S > 4 ? 4 : 1)>(group, at);
    else osier_read<1>(group, at);
}

template <class G> static __device__ __forceinline__ void osier_write_any(const G& group, osier_u8* at, osier_u32 access) {
    const int S = sizeof(G);
    if (access >= S) osier_write<S>(group, at);
    else if (S > 4 && access >= 4) osier_write<(S > 4 ? 4 : 1)>(group, at);
    else osier_write<1>(group, at);
}

// Groups of W bytes where both sides are one run: no place to find.
template <class O, int W>
static __device__ __forceinline__ void osier_reduce_runs(const osier_reduction& plan, osier_u64 first, osier_u64 last) {
    typedef typename O::element T;
    const int ITEMS = 2, N = W / (int)sizeof(T);
    osier_u8* const to = plan.sides.to.layout;
    const osier_u8* const from = plan.sides.from.layout;
    const osier_u64 apart = blockDim.x, step = (osier_u64)gridDim.x * apart * ITEMS;
    for (osier_u64 at = first + (osier_u64)blockIdx.x * apart * ITEMS + threadIdx.x; at < last; at += step) {
        osier_group<T, N> left[ITEMS], right[ITEMS];
#pragma unroll
        for (int k = 0; k < ITEMS; k++) {
            const osier_u64 number = at + k * apart;
            if (number < last) {
                osier_read<W>(right[k], from + number * W);
                osier_read<W>(left[k], to + number * W);
            }
        }
#pragma unroll
        for (int k = 0; k < ITEMS; k++) {
            const osier_u64 number = at + k * apart;
            if (number < last) {
                O::template apply<N>(plan.operation, left[k].lane, right[k].lane);
                osier_write<W>(left[k], to + number * W);
            }
        }
    }
}

static __device__ __forceinline__ bool osier_is_run(const osier_nest& nest) {
    return !nest.dimensions && !nest.list.offsets && !nest.map;
}

// Groups of W bytes; `O::apply<N>(operation, left, right)` combines N elements.
template <class O, int W> static __device__ __forceinline__ void osier_reduce(const osier_reduction& plan) {
    typedef typename O::element T;
    const int N = W / (int)sizeof(T);
    const osier_copy& sides = plan.sides;
    const bool wide = sides.wide;
    const osier_u64 first = (sides.start + (W - 1)) / W;
    const osier_u64 last = sides.end / W;
    const osier_u64 step = (osier_u64)gridDim.x * blockDim.x;
    const bool runs = W == 16 && (N > 1 || plan.access >= W) && osier_is_run(sides.to.nest) && osier_is_run(sides.from.nest);
    if (runs) osier_reduce_runs<O, W>(plan, first, last);
    for (osier_u64 at = first + (osier_u64)blockIdx.x * blockDim.x + threadIdx.x; !runs && at < last; at += step) {
        osier_u8* const to = osier_word_at<W>(sides.to.nest, sides.to.layout, wide, at);
        const osier_u8* const from = osier_word_at<W>(sides.from.nest, sides.from.layout, wide, at);
        osier_group<T, N> left, right;
        if (N == 1) {
            osier_read_any(right, from, plan.access);
            osier_read_any(left, to, plan.access);
        } else {
            osier_read<W>(right, from);
            osier_read<W>(left, to);
        }
        O::template apply<N>(plan.operation, left.lane, right.lane);
        if (N == 1) osier_write_any(left, to, plan.access); else osier_write<W>(left, to);
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

#define OSIER_LANES(RESULT)                                                    \
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
        case OSIER_SUM: OSIER_LANES((U)(a + b));
        // Short ones would be multiplied as signed numbers.
        case OSIER_PRODUCT: OSIER_LANES((U)((sizeof(U) < 4 ? (osier_u32)a : a) * b));
        case OSIER_MIN: OSIER_LANES((S)b < (S)a ? b : a);
        case OSIER_MAX: OSIER_LANES((S)b > (S)a ? b : a);
        case OSIER_UNSIGNED_MIN: OSIER_LANES(b < a ? b : a);
        case OSIER_UNSIGNED_MAX: OSIER_LANES(b > a ? b : a);
        case OSIER_LOGICAL_AND: OSIER_LANES((U)(a != 0 && b != 0));
        case OSIER_LOGICAL_OR: OSIER_LANES((U)(a != 0 || b != 0));
        case OSIER_LOGICAL_XOR: OSIER_LANES((U)((a != 0) != (b != 0)));
        }
    }
};

// Words, bit by bit: 0 and, 1 or, 2 exclusive or.
template <class U> struct osier_bits_of {
    typedef U element;
    template <int N> static __device__ __forceinline__ void apply(osier_u32 operation, U* left, const U* right) {
        switch (operation) {
        case 0: OSIER_LANES((U)(a & b));
        case 1: OSIER_LANES((U)(a | b));
        case 2: OSIER_LANES((U)(a ^ b));
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
        case OSIER_SUM: OSIER_LANES(F::narrow(a.wide() + b.wide()));
        case OSIER_PRODUCT: OSIER_LANES(F::narrow(a.wide() * b.wide()));
        case OSIER_MIN: OSIER_LANES(b.wide() < a.wide() || a.wide() != a.wide() ? b : a);
        case OSIER_MAX: OSIER_LANES(b.wide() > a.wide() || a.wide() != a.wide() ? b : a);
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
