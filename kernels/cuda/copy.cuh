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

// Words of a segment of each side from the first on, ITEMS of a lane under way, APART words apart.
template <int W, int ITEMS, int APART> static __device__ __forceinline__ void osier_copy_each(
    const osier_copy& plan, const osier_segment& reads, const osier_segment& writes, osier_u32 first,
    osier_u32 words, osier_u32 lane
) {
    typedef typename osier_word<W>::type word;
    const bool wide = plan.wide;
    for (osier_u32 number = first + lane * (APART == 1 ? ITEMS : 1); number < words; number += ITEMS * OSIER_LANES) {
        word moved[ITEMS];
        osier_u8* places[ITEMS];
        osier_find<W, ITEMS, APART>(plan.from.nest, wide, reads, number, words, places);
#pragma unroll
        for (int k = 0; k < ITEMS; k++) {
            if (number + k * APART < words) moved[k] = *(const word*)places[k];
        }
        osier_find<W, ITEMS, APART>(plan.to.nest, wide, writes, number, words, places);
#pragma unroll
        for (int k = 0; k < ITEMS; k++) {
            if (number + k * APART < words) *(word*)places[k] = moved[k];
        }
    }
}

// Narrow words of two cores that are written out, at strides: whole groups of 8 bytes ask
// for no word's number. Gives the words that are done.
template <int W> static __device__ __forceinline__ osier_u32 osier_copy_maps(
    const osier_copy& plan, const osier_segment& reads, const osier_segment& writes, osier_u32 words, osier_u32 lane
) {
    typedef typename osier_word<W>::type word;
    const int MANY = 8 / W;
    const osier_maps<W> from = {plan.from.nest, reads}, to = {plan.to.nest, writes};
    const osier_by_map<W, MANY> sources = {from}, targets = {to};
    const osier_u32 whole = words / MANY * MANY;
    for (osier_u32 number = lane * MANY; number < whole; number += MANY * OSIER_LANES) {
        word moved[MANY];
        osier_u8* places[MANY];
        sources.find(number, places);
#pragma unroll
        for (int k = 0; k < MANY; k++) moved[k] = *(const word*)places[k];
        targets.find(number, places);
#pragma unroll
        for (int k = 0; k < MANY; k++) *(word*)places[k] = moved[k];
    }
    return whole;
}

// Whether all words of a segment are found by osier_by_map.
static __device__ __forceinline__ bool osier_is_mapped(const osier_nest& nest, const osier_segment& segment) {
    return segment.kind & OSIER_MAP && nest.dimensions && !nest.dimension[0].table;
}

template <int W> static __device__ __forceinline__ void osier_copy_layouts(const osier_copy& plan) {
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
                osier_copy_run<W, 4>(writes.base, reads.base, words, lane);
            } else {
                // Neighbors share a search, but their accesses lie apart.
                const bool near = W <= 2 || (reads.kind | writes.kind) & OSIER_LIST;
                osier_u32 moved = 0;
                if (W <= 2 && osier_is_mapped(from, reads) && osier_is_mapped(to, writes)) {
                    moved = osier_copy_maps<(W <= 2 ? W : 1)>(plan, reads, writes, words, lane);
                }
                if (near) osier_copy_each<W, W <= 2 ? 8 / W : 4, 1>(plan, reads, writes, moved, words, lane);
                else osier_copy_each<W, 4, OSIER_LANES>(plan, reads, writes, 0, words, lane);
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
