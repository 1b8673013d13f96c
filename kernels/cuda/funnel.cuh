// Runs at odd distances: no word suits both memories, so bytes would go one by one.
//
// Words of 8 bytes all the same. Each is aligned where it is written; what is read
// for it are the two aligned words around, shifted. Only bytes of the run, and of
// the range, are ever touched.
//
//     packed   |....UUUU|UUUU....|     a unit: 8 packed bytes between aligned addresses
//     layout   ..|..WWWW|WWWW..|..     W: the aligned word that begins in the unit
//
// Pack: a unit inside of one run is one word; the others are written byte by byte.
// Unpack: the unit in which W begins writes W, if run and range hold all of W; bytes
// of the run that no such word has are written by the unit that they are in. So each
// byte is written once, and who writes it is known without asking a neighbour.
#pragma once
#include "general.cuh"

// Part of a run: `before` bytes, one packed byte, and what is behind it, `left` bytes
// together with it.
struct osier_part {
    osier_u8* at;
    osier_u64 before, left;
};

static __device__ __forceinline__ osier_u64 osier_least(osier_u64 a, osier_u64 b) { return a < b ? a : b; }

// Where a packed byte is, and how much of its run is in the range.
template <bool LISTS, class I>
static __device__ __forceinline__ osier_part osier_find_part(const osier_general& plan, osier_u64 byte) {
    const osier_nest& nest = plan.nest;
    I rest = osier_quotient(nest.core, (I)byte);
    const osier_u64 inside = byte - (osier_u64)rest * nest.core.value;
    osier_u64 before = inside, left = nest.core.value - inside;
    osier_i64 offset = (osier_i64)inside;
    if (LISTS && nest.list.offsets) {
        const osier_general_nest<1, I> lists = {nest};
        const osier_u32 run = lists.run(inside);
        const osier_u64 begin = lists.before(run);
        before = inside - begin;
        offset = lists.offset(run) + (osier_i64)before;
        if (run + 1 < nest.list.runs) left = lists.before(run + 1) - inside;
    }
#pragma unroll 1
    for (osier_u32 k = 0; k < nest.dimensions; k++) {
        const osier_dimension& dimension = nest.dimension[k];
        I index = rest;
        if (k + 1 < nest.dimensions) {
            rest = osier_quotient(dimension.count, index);
            index -= rest * (I)dimension.count.value;
        }
        if (!LISTS || !dimension.table) offset += (osier_i64)index * dimension.stride;
        else if (dimension.wide) offset += ((const osier_i64*)dimension.table)[index];
        else offset += ((const osier_i32*)dimension.table)[index];
    }
    const osier_part part = {
        plan.range.layout + offset,
        osier_least(before, byte - plan.range.start),
        osier_least(left, plan.range.end - byte),
    };
    return part;
}

// The 8 bytes at an address, of which `before` lie in front and `left` behind, these
// included.
static __device__ __forceinline__ osier_u64 osier_load_odd(const osier_u8* at, osier_u64 before, osier_u64 left) {
    const osier_u32 odd = (osier_u32)(osier_u64)at & 7;
    if (odd == 0) return *(const osier_u64*)at;
    if (before >= odd && left >= 16 - odd) {
        const osier_u64* const words = (const osier_u64*)(at - odd);
        return words[0] >> (8 * odd) | words[1] << (64 - 8 * odd);
    }
    osier_u64 word = 0;
#pragma unroll
    for (int k = 0; k < 8; k++) word |= (osier_u64)at[k] << (8 * k);
    return word;
}

// A word, and where it goes; nowhere if it was dealt with.
struct osier_moved {
    osier_u64 word;
    osier_u8* to;
};

template <bool LISTS, bool PACK, class I>
static __device__ __forceinline__ osier_moved osier_funnel_unit(const osier_general& plan, osier_i64 begin) {
    const osier_range& range = plan.range;
    osier_u8* const packed = range.packed - range.start;
    const osier_u64 low = begin < (osier_i64)range.start ? range.start : (osier_u64)begin;
    const osier_u64 high = osier_least((osier_u64)(begin + 8), range.end);
    osier_moved moved = {0, 0};
    for (osier_u64 at = low; at < high;) {
        const osier_part part = osier_find_part<LISTS, I>(plan, at);
        const osier_u64 until = osier_least(at + part.left, high);
        if (PACK && until - at == 8) {
            moved.word = osier_load_odd(part.at, part.before, part.left);
            moved.to = packed + at;
        } else if (PACK) {
            for (osier_u64 k = 0; k < until - at; k++) packed[at + k] = part.at[k];
        } else {
            // The packed byte whose place is the first aligned one in the unit.
            osier_i64 word = (osier_i64)at + (osier_i64)((0 - (osier_u64)part.at) & 7);
            if (word >= begin + 8) word -= 8;
            const osier_i64 first = (osier_i64)(at - part.before), last = (osier_i64)(at + part.left);
            if (word >= first && word + 8 <= last) {
                moved.word = osier_load_odd(packed + word, word - range.start, range.end - word);
                moved.to = part.at + (word - (osier_i64)at);
            }
            const bool held = word - 8 >= first && word <= last;
            const osier_i64 from = held && word > (osier_i64)at ? word : (osier_i64)at;
            const osier_i64 to = moved.to && word < (osier_i64)until ? word : (osier_i64)until;
            for (osier_i64 byte = from; byte < to; byte++) part.at[byte - (osier_i64)at] = packed[byte];
        }
        at = until;
    }
    return moved;
}

template <bool LISTS, bool PACK, class I>
static __device__ __forceinline__ void osier_funnel_all(const osier_general& plan) {
    const int ITEMS = 2;
    const osier_range& range = plan.range;
    // Units begin at aligned addresses, which need be no multiples of 8 in numbers.
    const osier_u64 odd = (osier_u64)(range.packed - range.start) & 7;
    const osier_u64 first = (range.start + odd) / 8, end = (range.end + odd + 7) / 8;
    const osier_u64 apart = blockDim.x, step = (osier_u64)gridDim.x * apart * ITEMS;
    for (osier_u64 at = first + (osier_u64)blockIdx.x * apart * ITEMS + threadIdx.x; at < end; at += step) {
        osier_moved moved[ITEMS];
#pragma unroll
        for (int k = 0; k < ITEMS; k++) {
            const osier_u64 unit = at + k * apart;
            moved[k].to = 0;
            if (unit < end) {
                moved[k] = osier_funnel_unit<LISTS, PACK, I>(plan, (osier_i64)(unit * 8) - (osier_i64)odd);
            }
        }
#pragma unroll
        for (int k = 0; k < ITEMS; k++) {
            if (moved[k].to) *(osier_u64*)moved[k].to = moved[k].word;
        }
    }
}

template <bool LISTS, bool PACK> static __device__ __forceinline__ void osier_funnel(const osier_general& plan) {
    if (plan.range.wide) osier_funnel_all<LISTS, PACK, osier_u64>(plan);
    else osier_funnel_all<LISTS, PACK, osier_u32>(plan);
}
