// A run of bytes by one warp, at any two addresses.
#pragma once
#include "osier.cuh"

const osier_u32 OSIER_LANES = 32;

// Words that both addresses suit: ITEMS of a lane under way.
template <int W, int ITEMS> static __device__ __forceinline__ void osier_copy_words(
    osier_u8* to, const osier_u8* from, osier_u32 words, osier_u32 lane
) {
    typedef typename osier_word<W>::type word;
    osier_u32 at = lane;
    to += (osier_u64)lane * W;
    from += (osier_u64)lane * W;
    for (; at + (ITEMS - 1) * OSIER_LANES < words; at += ITEMS * OSIER_LANES) {
        word moved[ITEMS];
#pragma unroll
        for (int k = 0; k < ITEMS; k++) moved[k] = ((const word*)from)[k * OSIER_LANES];
#pragma unroll
        for (int k = 0; k < ITEMS; k++) ((word*)to)[k * OSIER_LANES] = moved[k];
        from += ITEMS * OSIER_LANES * W;
        to += ITEMS * OSIER_LANES * W;
    }
    word moved[ITEMS];
#pragma unroll
    for (int k = 0; k < ITEMS; k++) if (at + k * OSIER_LANES < words) moved[k] = ((const word*)from)[k * OSIER_LANES];
#pragma unroll
    for (int k = 0; k < ITEMS; k++) if (at + k * OSIER_LANES < words) ((word*)to)[k * OSIER_LANES] = moved[k];
}

// Bytes at odd distances. Words of 8 bytes are aligned where they are written; each is
// made by a shift of the two aligned words around it. Only bytes of the run are touched:
// what no such word holds, fewer than 16 bytes at each end, goes byte by byte.
//
//     from   |...ooXXXXXXXX|XXXXXXXX|XXXXXXXX|Xo....
//     to     |....oo..|XXXXXXXX|XXXXXXXX|XXXXXXXX|Xo
static __device__ __forceinline__ void osier_copy_shifted(
    osier_u8* to, const osier_u8* from, osier_u32 bytes, osier_u32 lane
) {
    const int ITEMS = 4;
    osier_u32 head = (osier_u32)(0 - (osier_u64)to) & 7;
    const osier_u32 odd = (osier_u32)((osier_u64)from + head) & 7;
    // The word in front of the first one, and the one behind the last, are read, too.
    if (head < odd) head += 8;
    const osier_u32 behind = odd ? 8 - odd : 0;
    const osier_u32 words = bytes >= head + behind ? (bytes - head - behind) / 8 : 0;
    if (!words) head = 0;
    const osier_u32 tail = head + 8 * words;
    // Fewer than 16 bytes each; all of them, where there is no word.
    for (osier_u32 at = lane; at < head + (bytes - tail); at += OSIER_LANES) {
        const osier_u32 byte = at < head ? at : tail + (at - head);
        to[byte] = from[byte];
    }
    const osier_u64* const low = (const osier_u64*)(from + head - odd) + lane;
    osier_u64* const there = (osier_u64*)(to + head) + lane;
    const osier_u32 down = 8 * odd, up = 64 - down;
    for (osier_u32 at = lane; at < words; at += ITEMS * OSIER_LANES) {
        osier_u64 moved[ITEMS], next[ITEMS];
        const osier_u32 done = at - lane;
#pragma unroll
        for (int k = 0; k < ITEMS; k++) {
            if (at + k * OSIER_LANES < words) {
                moved[k] = low[done + k * OSIER_LANES];
                next[k] = odd ? low[done + k * OSIER_LANES + 1] : 0;
            }
        }
#pragma unroll
        for (int k = 0; k < ITEMS; k++) {
            if (at + k * OSIER_LANES < words) {
                // A shift by 64 is a shift by 63 and one more.
                there[done + k * OSIER_LANES] = moved[k] >> down | next[k] << 1 << (up - 1);
            }
        }
    }
}

// Words of W bytes; narrow ones need not suit.
template <int W, int ITEMS> static __device__ __forceinline__ void osier_copy_run(
    osier_u8* to, const osier_u8* from, osier_u32 words, osier_u32 lane
) {
    if (W <= 2) osier_copy_shifted(to, from, words * W, lane);
    else osier_copy_words<W, ITEMS>(to, from, words, lane);
}
