// Updates of elements of at most 8 bytes, each by an atomic of the whole system:
// there = there op given; what was there may go to packed bytes.
//
// An atomic is a compare-and-swap of the element's bits in a loop, so results are those of
// reductions, bit for bit; sums of integers of 4 and 8 bytes have an instruction. A byte is
// swapped with the one beside it. Within a launch no element is there twice, so a loop goes
// round again only where another launch, another device or the host is at the same element.
#pragma once
#include "reduce.cuh"

struct osier_update {
    osier_copy sides;      // from the given elements to those that are updated
    osier_u8* before;      // gets what was there, packed, from packed byte `start` on; or none
    osier_u64 expected;    // of a compare-and-swap
    osier_u32 operation;
    osier_u32 access;      // bytes of the widest aligned access inside of a given element
};

// Behind those of reductions of integers.
enum { OSIER_BIT_AND = 9, OSIER_BIT_OR, OSIER_BIT_XOR, OSIER_REPLACE, OSIER_COMPARE_SWAP, OSIER_KEEP };

#ifdef __CUDA_ARCH__
static __device__ __forceinline__ osier_u64 osier_load_whole(const osier_u64* at) {
    osier_u64 word;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(word) : "l"(at) : "memory");
    return word;
}
static __device__ __forceinline__ osier_u32 osier_load_whole(const osier_u32* at) {
    osier_u32 word;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(word) : "l"(at) : "memory");
    return word;
}
static __device__ __forceinline__ osier_u16 osier_load_whole(const osier_u16* at) {
    osier_u16 word;
    asm volatile("ld.relaxed.sys.global.u16 %0, [%1];" : "=h"(word) : "l"(at) : "memory");
    return word;
}
static __device__ __forceinline__ osier_u64 osier_swap_if(osier_u64* at, osier_u64 expected, osier_u64 next) {
    osier_u64 before;
    asm volatile("atom.relaxed.sys.global.cas.b64 %0, [%1], %2, %3;" : "=l"(before) : "l"(at), "l"(expected), "l"(next) : "memory");
    return before;
}
static __device__ __forceinline__ osier_u32 osier_swap_if(osier_u32* at, osier_u32 expected, osier_u32 next) {
    osier_u32 before;
    asm volatile("atom.relaxed.sys.global.cas.b32 %0, [%1], %2, %3;" : "=r"(before) : "l"(at), "r"(expected), "r"(next) : "memory");
    return before;
}
static __device__ __forceinline__ osier_u16 osier_swap_if(osier_u16* at, osier_u16 expected, osier_u16 next) {
    osier_u16 before;
    asm volatile("atom.relaxed.sys.global.cas.b16 %0, [%1], %2, %3;" : "=h"(before) : "l"(at), "h"(expected), "h"(next) : "memory");
    return before;
}
static __device__ __forceinline__ osier_u64 osier_add_whole(osier_u64* at, osier_u64 value) {
    osier_u64 before;
    asm volatile("atom.relaxed.sys.global.add.u64 %0, [%1], %2;" : "=l"(before) : "l"(at), "l"(value) : "memory");
    return before;
}
static __device__ __forceinline__ osier_u32 osier_add_whole(osier_u32* at, osier_u32 value) {
    osier_u32 before;
    asm volatile("atom.relaxed.sys.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(at), "r"(value) : "memory");
    return before;
}
#else
template <class U> static inline U osier_load_whole(const U* at) { return __atomic_load_n(at, __ATOMIC_RELAXED); }
template <class U> static inline U osier_swap_if(U* at, U expected, U next) {
    __atomic_compare_exchange_n(at, &expected, next, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}
template <class U> static inline U osier_add_whole(U* at, U value) { return __atomic_fetch_add(at, value, __ATOMIC_RELAXED); }
#endif

// Two neighbors as one word, of which the upper or the lower is meant.
static __device__ __forceinline__ osier_u8 osier_load_whole(const osier_u8* at) {
    const osier_u32 shift = 8 * ((osier_u32)(osier_u64)at & 1);
    return (osier_u8)(osier_load_whole((const osier_u16*)((osier_u64)at & ~1ull)) >> shift);
}
static __device__ __forceinline__ osier_u8 osier_swap_if(osier_u8* at, osier_u8 expected, osier_u8 next) {
    osier_u16* const both = (osier_u16*)((osier_u64)at & ~1ull);
    const osier_u32 shift = 8 * ((osier_u32)(osier_u64)at & 1);
    osier_u16 seen = osier_load_whole((const osier_u16*)both);
    for (;;) {
        const osier_u8 there = (osier_u8)(seen >> shift);
        if (there != expected) return there;
        const osier_u16 wanted = (osier_u16)((seen & ~(0xffu << shift)) | (osier_u32)next << shift);
        const osier_u16 before = osier_swap_if(both, seen, wanted);
        if (before == seen) return there;
        seen = before;
    }
}

template <int S> struct osier_added {
    template <class U> static __device__ __forceinline__ bool add(U*, U, U*) { return false; }
};
template <> struct osier_added<4> {
    static __device__ __forceinline__ bool add(osier_u32* at, osier_u32 value, osier_u32* before) {
        *before = osier_add_whole(at, value);
        return true;
    }
};
template <> struct osier_added<8> {
    static __device__ __forceinline__ bool add(osier_u64* at, osier_u64 value, osier_u64* before) {
        *before = osier_add_whole(at, value);
        return true;
    }
};

// Integers, and whatever is replaced or compared.
template <class U, class S> struct osier_updated_integers {
    typedef U element;
    static const bool WHOLE = true;
    template <int N> static __device__ __forceinline__ void apply(osier_u32 operation, U* left, const U* right) {
        switch (operation) {
        case OSIER_BIT_AND: OSIER_EACH((U)(a & b));
        case OSIER_BIT_OR: OSIER_EACH((U)(a | b));
        case OSIER_BIT_XOR: OSIER_EACH((U)(a ^ b));
        case OSIER_REPLACE:
        case OSIER_COMPARE_SWAP: OSIER_EACH((a, b));
        default: osier_integers<U, S>::template apply<N>(operation, left, right);
        }
    }
};

template <class F> struct osier_updated_floats : osier_floats<F> {
    static const bool WHOLE = false;
};

// One element; its bits before.
template <class O, class U> static __device__ __forceinline__ U osier_update_one(
    const osier_update& plan, U* at, const typename O::element& given
) {
    union bits { U word; typename O::element element; __device__ __forceinline__ bits() {} };
    if (plan.operation == OSIER_KEEP) return osier_load_whole((const U*)at);
    if (plan.operation == OSIER_COMPARE_SWAP) {
        bits next;
        next.element = given;
        return osier_swap_if(at, (U)plan.expected, next.word);
    }
    if (O::WHOLE && plan.operation == OSIER_SUM) {
        bits value;
        value.element = given;
        U before;
        if (osier_added<(int)sizeof(U)>::add(at, value.word, &before)) return before;
    }
    U seen = osier_load_whole((const U*)at);
    for (;;) {
        bits next;
        next.word = seen;
        typename O::element left[1] = {next.element}, right[1] = {given};
        O::template apply<1>(plan.operation, left, right);
        next.element = left[0];
        const U before = osier_swap_if(at, seen, next.word);
        if (before == seen) return seen;
        seen = before;
    }
}

template <class O, class U> static __device__ __forceinline__ void osier_update_each(const osier_update& plan) {
    typedef typename O::element T;
    const int S = sizeof(T);
    const osier_copy& sides = plan.sides;
    const bool wide = sides.wide;
    const osier_u64 last = sides.end / S, apart = (osier_u64)gridDim.x * blockDim.x;
    osier_u64 number = sides.start / S + (osier_u64)blockIdx.x * blockDim.x + threadIdx.x;
    // A kernel that runs and acquires the element finds what was copied before.
    __threadfence_system();
    for (; number < last; number += apart) {
        osier_u8* const from = osier_word_at<S>(sides.from.nest, sides.from.layout, wide, number);
        osier_u8* const to = osier_word_at<S>(sides.to.nest, sides.to.layout, wide, number);
        osier_group<T, 1> given;
        osier_read_any<1, 1>(&given, &from, 0, 1, plan.access);
        osier_group<U, 1> was;
        was.lane[0] = osier_update_one<O, U>(plan, (U*)osier_kept(to), given.lane[0]);
        if (plan.before) osier_write<1>(was, plan.before + (number * S - sides.start));
    }
}
