// Long runs of any length at listed places: what a triangle, a stair or an indexed type is.
//
//     chunk   |...........|...........|...........|    packed words, one warp each
//     run     |-------|----|------------------|----    found once a chunk, then one by one
//
// The general kernel takes these too, but asks more questions for a chunk and needs more
// registers, so fewer of its warps are resident. Packed bytes have 32 bits here.
#pragma once
#include "nest.cuh"
#include "run.cuh"

struct osier_runs {
    osier_range range;
    osier_list list;
    osier_u32 chunks;  // of the range
    osier_u32 unused;
};

template <int W, bool PACK> static __device__ __forceinline__ void osier_move_runs(const osier_runs& plan) {
    typedef typename osier_word<W>::type word;
    // Few registers, so that 8 blocks of 256 threads are resident: both sides are asked by the
    // number of a packed word.
    const int ITEMS = W == 16 ? 2 : 4;
    const osier_range& range = plan.range;
    const osier_list& list = plan.list;
    const osier_u32* const before = (const osier_u32*)list.before;
    const osier_u32 first = (osier_u32)((range.start + (W - 1)) / W);
    const osier_u32 last = (osier_u32)(range.end / W);
    osier_u8* const packed = range.packed - range.start;
    const osier_u32 warps = blockDim.x / OSIER_LANES;
    osier_u32 chunk = blockIdx.x * warps + threadIdx.x / OSIER_LANES;
    for (; chunk < plan.chunks; chunk += gridDim.x * warps) {
        osier_u32 now = first + chunk * range.chunk;
        const osier_u32 stop = chunk + 1 < plan.chunks ? now + range.chunk : last;
        const osier_u32 hint = now * W >> list.shift;
        osier_u32 run = osier_bisect(before, list.hints[hint], list.hints[hint + 1], now * W);
        for (;;) {
            const osier_u32 next = run + 1 < list.runs ? before[run + 1] / W : stop;
            const osier_u32 end = next < stop ? next : stop;
            // Where packed word 0 would be, if it were of this run.
            osier_u8* const inside = range.layout + osier_signed(list.offsets, list.wide_offsets, run) - before[run];
            word* const to = (word*)(PACK ? packed : inside);
            const word* const from = (const word*)(PACK ? inside : packed);
            osier_u32 at = now + threadIdx.x % OSIER_LANES;
#pragma unroll 1
            for (; at + (ITEMS - 1) * OSIER_LANES < end; at += ITEMS * OSIER_LANES) {
                word moved[ITEMS];
#pragma unroll
                for (int k = 0; k < ITEMS; k++) moved[k] = from[at + k * OSIER_LANES];
#pragma unroll
                for (int k = 0; k < ITEMS; k++) to[at + k * OSIER_LANES] = moved[k];
            }
            word moved[ITEMS];
#pragma unroll
            for (int k = 0; k < ITEMS; k++) if (at + k * OSIER_LANES < end) moved[k] = from[at + k * OSIER_LANES];
#pragma unroll
            for (int k = 0; k < ITEMS; k++) if (at + k * OSIER_LANES < end) to[at + k * OSIER_LANES] = moved[k];
            if (end == stop) break;
            now = end;
            run++;
        }
    }
    // Fewer than W bytes before the first word, fewer than W behind the last.
    if (blockIdx.x == 0 && threadIdx.x < 2 * W) {
        const bool behind = threadIdx.x >= W;
        const osier_u64 from = (osier_u64)first * W, whole = (osier_u64)last * W, until = whole > from ? whole : from;
        const osier_u64 byte = behind ? until + (threadIdx.x - W) : range.start + threadIdx.x;
        const osier_u64 end = behind ? range.end : (from < range.end ? from : range.end);
        if (byte < end) {
            osier_u8* const inside = range.layout + osier_listed(list, byte);
            if (PACK) packed[byte] = *inside; else *inside = packed[byte];
        }
    }
}
