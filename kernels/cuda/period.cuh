// From one layout to another where both come again after few bytes, as arrays of records
// do: the words of one common period are in the argument, each as wide as both sides
// allow there. A thread takes one of them and goes from period to period.
//
//     from    |iiii....dddddddd....ccc.|iiii....dddddddd....ccc.|
//     to      |ccc.iiiidddddddd|ccc.iiiidddddddd|
//     words   of 8 bytes: d, of 4: i, of 1: c c c
//
// Words of one width come together, the widest first: a warp does not go apart. A thread
// block takes so few periods at once that what the widths have in common is in a cache.
#pragma once
#include "osier.cuh"

const osier_u32 OSIER_PERIOD_WORDS = 128;
const osier_u32 OSIER_PERIOD_THREADS = 256;

struct osier_period_word {
    osier_i32 from;    // bytes behind the start of a period
    osier_i32 to;
    osier_u16 packed;
    osier_u16 bytes;
};

// The words of one width.
struct osier_period_width {
    osier_u32 first;
    osier_u32 count;
    osier_u32 apart;  // periods that a thread block's threads take at once
    osier_u32 magic;  // division by the count
    osier_u32 shift;
};

// Of a period that the range cuts.
struct osier_period_cut {
    osier_u64 period;
    osier_u32 from;   // packed bytes inside
    osier_u32 until;
};

struct osier_periods {
    osier_u8* from;       // period 0
    osier_u8* to;
    osier_i64 from_step;  // bytes between periods
    osier_i64 to_step;
    osier_u64 first;      // whole periods
    osier_u64 last;
    osier_period_cut cut[2];
    osier_period_width width[5];  // 16 to 1 bytes
    osier_u32 chunk;      // periods that a thread block takes at once
    osier_u32 words;
    osier_u32 unused;
    osier_period_word word[OSIER_PERIOD_WORDS];
};

// The words of W bytes of some periods.
template <int W> static __device__ __forceinline__ void osier_copy_period_words(
    const osier_periods& plan, const osier_period_width& width, osier_u64 begin, osier_u32 periods
) {
    typedef typename osier_word<W>::type word;
    const int ITEMS = 4;
    const osier_u32 period = (__umulhi(threadIdx.x, width.magic) + threadIdx.x) >> width.shift;
    if (period >= width.apart) return;
    const osier_period_word& it = plan.word[width.first + threadIdx.x - period * width.count];
    const osier_i64 number = (osier_i64)(begin + period);
    osier_u8* from = osier_kept(plan.from + number * plan.from_step + it.from);
    osier_u8* to = osier_kept(plan.to + number * plan.to_step + it.to);
    const osier_i64 from_apart = plan.from_step * width.apart, to_apart = plan.to_step * width.apart;
    for (osier_u32 at = period; at < periods; at += ITEMS * width.apart) {
        word moved[ITEMS];
#pragma unroll
        for (int k = 0; k < ITEMS; k++) {
            if (at + k * width.apart < periods) moved[k] = *(const word*)from;
            from = osier_kept(from + from_apart);
        }
#pragma unroll
        for (int k = 0; k < ITEMS; k++) {
            if (at + k * width.apart < periods) *(word*)to = moved[k];
            to = osier_kept(to + to_apart);
        }
    }
}

static __device__ __forceinline__ void osier_move_periods(const osier_periods& plan) {
    const osier_u64 step = (osier_u64)gridDim.x * plan.chunk;
    for (osier_u64 at = plan.first + (osier_u64)blockIdx.x * plan.chunk; at < plan.last; at += step) {
        const osier_u32 periods = (osier_u32)(plan.last - at < plan.chunk ? plan.last - at : plan.chunk);
        if (plan.width[0].count) osier_copy_period_words<16>(plan, plan.width[0], at, periods);
        if (plan.width[1].count) osier_copy_period_words<8>(plan, plan.width[1], at, periods);
        if (plan.width[2].count) osier_copy_period_words<4>(plan, plan.width[2], at, periods);
        if (plan.width[3].count) osier_copy_period_words<2>(plan, plan.width[3], at, periods);
        if (plan.width[4].count) osier_copy_period_words<1>(plan, plan.width[4], at, periods);
    }
    // What the range cuts, byte by byte: a thread for a word of each end.
    const osier_u32 number = threadIdx.x % OSIER_PERIOD_WORDS;
    if (blockIdx.x == 0 && number < plan.words) {
        const osier_period_cut& cut = plan.cut[threadIdx.x / OSIER_PERIOD_WORDS];
        const osier_period_word& it = plan.word[number];
        const osier_u8* const from = plan.from + (osier_i64)cut.period * plan.from_step + it.from;
        osier_u8* const to = plan.to + (osier_i64)cut.period * plan.to_step + it.to;
        for (osier_u32 k = 0; k < it.bytes; k++) {
            const osier_u32 byte = it.packed + k;
            if (byte >= cut.from && byte < cut.until) to[k] = from[k];
        }
    }
}
