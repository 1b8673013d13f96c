// Pairs of a value and an index: the smallest or largest value, and the smallest
// index of those that have it.
//
// Numbers are compared by keys: integers that order as the numbers do, in which
// both zeros are one and a NaN is the worst. What is written are the bits of one
// side, so one kernel serves all pairs.
#include "reduce.cuh"

enum { OSIER_SIGNED, OSIER_UNSIGNED, OSIER_IEEE, OSIER_BRAIN };

static __device__ __forceinline__ osier_u64 osier_read_bits(const osier_u8* at, osier_u32 bytes, osier_u32 access) {
    if (access >= bytes) {
        switch (bytes) {
        case 1: return *at;
        case 2: return *(const osier_u16*)at;
        case 4: return *(const osier_u32*)at;
        default: return *(const osier_u64*)at;
        }
    }
    osier_u64 bits = 0;
    if (access >= 4) return (osier_u64)((const osier_u32*)at)[1] << 32 | *(const osier_u32*)at;
    for (osier_u32 k = 0; k < bytes; k++) bits |= (osier_u64)at[k] << (8 * k);
    return bits;
}

static __device__ __forceinline__ void osier_write_bits(osier_u8* at, osier_u64 bits, osier_u32 bytes, osier_u32 access) {
    if (access >= bytes) {
        switch (bytes) {
        case 1: *at = (osier_u8)bits; return;
        case 2: *(osier_u16*)at = (osier_u16)bits; return;
        case 4: *(osier_u32*)at = (osier_u32)bits; return;
        default: *(osier_u64*)at = bits; return;
        }
    }
    for (osier_u32 k = 0; k < bytes; k++) at[k] = (osier_u8)(bits >> (8 * k));
}

static __device__ __forceinline__ osier_u64 osier_key(osier_u64 bits, osier_u32 bytes, osier_u32 kind, osier_u64 worst) {
    if (kind == OSIER_UNSIGNED) return bits;
    const osier_u64 top = 1ull << (8 * bytes - 1);
    if (kind == OSIER_SIGNED) return bits ^ top;
    const osier_u64 rest = bits & (top - 1);
    const osier_u64 infinity = kind == OSIER_BRAIN ? 0x7f80ull
        : bytes == 2 ? 0x7c00ull : bytes == 4 ? 0x7f800000ull : 0x7ff0000000000000ull;
    if (rest > infinity) return worst;
    return bits & top ? top - rest : top + rest;
}

// For sm_90: without the bound ptxas takes 56 registers, of which 4 blocks are resident, not 5.
extern "C" __global__ void __launch_bounds__(256, 5) osier_reduce_pair(osier_reduction plan, osier_last last) {
    const osier_copy& sides = plan.sides;
    const bool wide = sides.wide, largest = plan.operation != 0;
    const osier_u32 V = plan.value_bytes, I = plan.index_bytes;
    const osier_u64 none = ~0ull, step = (osier_u64)gridDim.x * blockDim.x;
    // Of pairs, start and end are numbers.
    for (osier_u64 at = sides.start + (osier_u64)blockIdx.x * blockDim.x + threadIdx.x; at < sides.end; at += step) {
        const osier_u64 byte = at * (V + I);
        osier_u8* const left = osier_word_at<1>(sides.to.nest, sides.to.layout, wide, byte);
        osier_u8* const left_index = osier_word_at<1>(sides.to.nest, sides.to.layout, wide, byte + V);
        const osier_u8* const right = osier_word_at<1>(sides.from.nest, sides.from.layout, wide, byte);
        const osier_u8* const right_index = osier_word_at<1>(sides.from.nest, sides.from.layout, wide, byte + V);
        const osier_u64 a = osier_read_bits(left, V, plan.access), b = osier_read_bits(right, V, plan.access);
        const osier_u64 i = osier_read_bits(left_index, I, plan.access), j = osier_read_bits(right_index, I, plan.access);
        const osier_u64 worst = largest ? 0 : none;
        const osier_u64 p = osier_key(a, V, plan.value_kind, worst), q = osier_key(b, V, plan.value_kind, worst);
        const bool better = largest ? q > p : q < p;
        const bool sooner = osier_key(j, I, plan.index_kind, none) < osier_key(i, I, plan.index_kind, none);
        if (better) osier_write_bits(left, b, V, plan.access);
        if (better || (p == q && sooner)) osier_write_bits(left_index, j, I, plan.access);
    }
    osier_tell(last);
}
