// Blocks of one length under 1 to 4 nested strides.
#pragma once
#include "osier.cuh"

struct osier_level {
    osier_divisor count;
    osier_i64 stride;
};

struct osier_strided {
    osier_range range;
    osier_divisor block;  // words of a block
    osier_level level[4]; // innermost first
};

template <int W, int LEVELS, class I> struct osier_strided_nest {
    const osier_strided& plan;

    __device__ __forceinline__ osier_i64 at(I word) const {
        I rest = osier_quotient(plan.block, word);
        osier_i64 offset = (osier_i64)(word - rest * (I)plan.block.value) * W;
#pragma unroll
        for (int k = 0; k < LEVELS; k++) {
            // The outermost count is the range's duty.
            if (k == LEVELS - 1) return offset + (osier_i64)rest * plan.level[k].stride;
            const I next = osier_quotient(plan.level[k].count, rest);
            offset += (osier_i64)(rest - next * (I)plan.level[k].count.value) * plan.level[k].stride;
            rest = next;
        }
        return offset;
    }
};

template <int W, int LEVELS, bool PACK>
static __device__ __forceinline__ void osier_move_strided(const osier_strided& plan) {
    if (plan.range.wide) {
        osier_strided_nest<W, LEVELS, osier_u64> nest = {plan};
        osier_move<W, PACK, osier_u64>(plan.range, nest);
    } else {
        osier_strided_nest<W, LEVELS, osier_u32> nest = {plan};
        osier_move<W, PACK, osier_u32>(plan.range, nest);
    }
}
