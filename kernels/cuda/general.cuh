// Any layout: nested loops, regular or by a table of places, over one block or
// over a list of runs of any length.
//
// The packed bytes are cut into equal words, whatever the runs are, and a word
// finds its run by bisection between two hints that are a fixed number of packed
// bytes apart: at most log2(bytes between hints) steps, however many runs.
#pragma once
#include "osier.cuh"

const int OSIER_DIMENSIONS = 8;

struct osier_dimension {
    osier_divisor count;
    osier_i64 stride;    // without a table
    const void* table;   // places, osier_i32 or osier_i64
    osier_u32 wide;      // osier_i64
    osier_u32 unused;
};

struct osier_list {
    const void* offsets;     // osier_i32 or osier_i64; null: the core is one block
    const void* before;      // packed bytes before each run, osier_u32 or osier_u64
    const osier_u32* hints;  // the run at every (1 << shift)-th packed byte
    osier_u32 wide_offsets;
    osier_u32 wide_before;
    osier_u32 shift;
    osier_u32 runs;
};

// Where packed words are, for any layout.
struct osier_nest {
    osier_divisor core;  // words of a core
    osier_list list;
    osier_u32 dimensions;
    osier_u32 unused;
    osier_dimension dimension[OSIER_DIMENSIONS]; // innermost first
};

struct osier_general {
    osier_range range;
    osier_nest nest;
};

template <int W, class I> struct osier_general_nest {
    const osier_nest& plan;

    __device__ __forceinline__ osier_u64 before(osier_u32 run) const {
        const osier_list& list = plan.list;
        return list.wide_before ? ((const osier_u64*)list.before)[run]
                                : (osier_u64)((const osier_u32*)list.before)[run];
    }

    __device__ __forceinline__ osier_i64 offset(osier_u32 run) const {
        const osier_list& list = plan.list;
        return list.wide_offsets ? ((const osier_i64*)list.offsets)[run]
                                 : (osier_i64)((const osier_i32*)list.offsets)[run];
    }

    // The run of a packed byte of the core.
    __device__ __forceinline__ osier_u32 run(osier_u64 byte) const {
        const osier_u64 hint = byte >> plan.list.shift;
        osier_u32 low = plan.list.hints[hint], high = plan.list.hints[hint + 1];
#pragma unroll 1
        while (low < high) {
            const osier_u32 middle = low + (high - low + 1) / 2;
            if (before(middle) <= byte) low = middle; else high = middle - 1;
        }
        return low;
    }

    __device__ __forceinline__ osier_i64 inside(osier_u64 byte) const {
        if (!plan.list.offsets) return (osier_i64)byte;
        const osier_u32 found = run(byte);
        return offset(found) + (osier_i64)(byte - before(found));
    }

    __device__ __forceinline__ osier_i64 at(I word) const {
        I rest = osier_quotient(plan.core, word);
        osier_i64 offset = inside((osier_u64)(word - rest * (I)plan.core.value) * W);
#pragma unroll 1
        for (osier_u32 k = 0; k < plan.dimensions; k++) {
            const osier_dimension& dimension = plan.dimension[k];
            I index = rest;
            if (k + 1 < plan.dimensions) {
                rest = osier_quotient(dimension.count, index);
                index -= rest * (I)dimension.count.value;
            }
            if (!dimension.table) offset += (osier_i64)index * dimension.stride;
            else if (dimension.wide) offset += ((const osier_i64*)dimension.table)[index];
            else offset += ((const osier_i32*)dimension.table)[index];
        }
        return offset;
    }
};

template <int W, bool PACK>
static __device__ __forceinline__ void osier_move_general(const osier_general& plan) {
    if (plan.range.wide) {
        osier_general_nest<W, osier_u64> nest = {plan.nest};
        osier_move<W, PACK, osier_u64>(plan.range, nest);
    } else {
        osier_general_nest<W, osier_u32> nest = {plan.nest};
        osier_move<W, PACK, osier_u32>(plan.range, nest);
    }
}
