// From one layout to another, with nothing between: a warp's chunk of the packed stream
// is found in both, and moved in pieces that are one segment on each side.
#pragma once
#include "nest.cuh"
#include "run.cuh"

// One of the two layouts of a launch.
struct osier_side {
    osier_u8* layout;  // origin of the layout, base included
    osier_nest nest;
};

struct osier_copy {
    osier_side from;
    osier_side to;
    osier_u64 start;  // packed bytes
    osier_u64 end;
    osier_u32 wide;   // word numbers need 64 bits
    osier_u32 chunk;  // words that a warp takes at once
};

template <int W> static __device__ __forceinline__ void osier_copy_layouts(const osier_copy& plan) {
    typedef typename osier_word<W>::type word;
    // Narrow words of a lane are neighbors, which share a division.
    const int ITEMS = W <= 2 ? 8 / W : 4, APART = W <= 2 ? 1 : (int)OSIER_LANES;
    const osier_nest& from = plan.from.nest;
    const osier_nest& to = plan.to.nest;
    const bool wide = plan.wide;
    const osier_u64 first = (plan.start + (W - 1)) / W;
    const osier_u64 last = plan.end / W;
    const osier_u32 lane = threadIdx.x % OSIER_LANES;
    const osier_u64 warps = blockDim.x / OSIER_LANES;
    const osier_u64 step = gridDim.x * warps * plan.chunk;
    for (osier_u64 at = first + (blockIdx.x * warps + threadIdx.x / OSIER_LANES) * plan.chunk; at < last; at += step) {
        const osier_u32 all = (osier_u32)osier_least(plan.chunk, last - at);
        for (osier_u32 done = 0; done < all;) {
            osier_segment reads = osier_open<W>(from, plan.from.layout, wide, at + done, all - done);
            osier_segment writes = osier_open<W>(to, plan.to.layout, wide, at + done, all - done);
            reads.base = osier_kept(reads.base);
            writes.base = osier_kept(writes.base);
            const osier_u32 words = reads.words < writes.words ? reads.words : writes.words;
            if (reads.kind == OSIER_RUN && writes.kind == OSIER_RUN) {
                osier_copy_run<W>(writes.base, reads.base, words, lane);
            } else {
                const osier_u32 begin = lane * (APART == 1 ? ITEMS : 1);
                for (osier_u32 number = begin; number < words; number += ITEMS * OSIER_LANES) {
                    word moved[ITEMS];
                    osier_u8* places[ITEMS];
                    osier_find<W, ITEMS, APART>(from, wide, reads, number, words, places);
#pragma unroll
                    for (int k = 0; k < ITEMS; k++) {
                        if (number + k * APART < words) moved[k] = *(const word*)places[k];
                    }
                    osier_find<W, ITEMS, APART>(to, wide, writes, number, words, places);
#pragma unroll
                    for (int k = 0; k < ITEMS; k++) {
                        if (number + k * APART < words) *(word*)places[k] = moved[k];
                    }
                }
            }
            done += words;
        }
    }
    // The ragged ends, byte by byte, as in osier_move_general.
    if (W > 1 && blockIdx.x == 0 && threadIdx.x < 2 * W) {
        const bool behind = threadIdx.x >= W;
        const osier_u64 begin = first * W, until = last * W > begin ? last * W : begin;
        const osier_u64 byte = behind ? until + (threadIdx.x - W) : plan.start + threadIdx.x;
        const osier_u64 stop = behind ? plan.end : (begin < plan.end ? begin : plan.end);
        if (byte < stop) {
            const osier_i64 rest = (osier_i64)(byte % W);
            osier_word_at<W>(to, plan.to.layout, wide, byte / W)[rest] =
                osier_word_at<W>(from, plan.from.layout, wide, byte / W)[rest];
        }
    }
}
