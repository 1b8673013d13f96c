// Pack and unpack of any layout, chunk by chunk.
#pragma once
#include "nest.cuh"
#include "run.cuh"

struct osier_general {
    osier_range range;
    osier_nest nest;
};

// Words of a segment one by one: four of a lane under way, of 16 bytes two.
template <int W, bool PACK, class P> static __device__ __forceinline__ void osier_move_each(
    const P& places, osier_u8* packed, osier_u32 words, osier_u32 lane
) {
    typedef typename osier_word<W>::type word;
    const int ITEMS = W == 16 ? 2 : 4;
    for (osier_u32 at = lane; at < words; at += ITEMS * OSIER_LANES) {
        word moved[ITEMS];
        osier_u8* inside[ITEMS];
        osier_u8* const outside = packed + (osier_u64)at * W;
#pragma unroll
        for (int k = 0; k < ITEMS; k++) {
            if (P::BEYOND) inside[k] = places.at(at + k * OSIER_LANES);
            if (at + k * OSIER_LANES < words) {
                if (!P::BEYOND) inside[k] = places.at(at + k * OSIER_LANES);
                moved[k] = *(const word*)(PACK ? inside[k] : outside + k * OSIER_LANES * W);
            }
        }
#pragma unroll
        for (int k = 0; k < ITEMS; k++) {
            if (at + k * OSIER_LANES < words) *(word*)(PACK ? outside + k * OSIER_LANES * W : inside[k]) = moved[k];
        }
    }
}

// Narrow words of a segment, as many as are 8 aligned packed bytes at once. Not for an unpack of
// single bytes: its stores would reach the second-level cache in more and smaller pieces than
// those of neighboring lanes do.
template <int W, bool PACK, class P, class G> static __device__ __forceinline__ void osier_move_groups(
    const P& places, const G& groups, osier_u8* packed, osier_u32 words, osier_u32 lane
) {
    typedef typename osier_word<W>::type word;
    const osier_u32 MANY = 8 / W;
    const osier_u32 head = (osier_u32)osier_least(words, ((0 - (osier_u64)packed) & 7) / W);
    const osier_u32 count = (words - head) / MANY, tail = head + count * MANY;
    if (lane < head + (words - tail)) {
        const osier_u32 number = lane < head ? lane : tail + (lane - head);
        word* const inside = (word*)places.at(number);
        word* const outside = (word*)packed + number;
        if (PACK) *outside = *inside; else *inside = *outside;
    }
    osier_u64* const units = (osier_u64*)(packed + (osier_u64)head * W);
    // Of an unpack the units of some rounds are read before the first is written.
    const int ROUNDS = PACK ? 1 : 4;
    for (osier_u32 at = lane; at < count; at += ROUNDS * OSIER_LANES) {
        osier_u64 unit[ROUNDS];
        if (!PACK) {
#pragma unroll
            for (int r = 0; r < ROUNDS; r++) {
                const osier_u32 next = at + r * OSIER_LANES;
                unit[r] = units[next < count ? next : at];
            }
        }
#pragma unroll
        for (int r = 0; r < ROUNDS; r++) {
            const osier_u32 next = at + r * OSIER_LANES;
            if (r && next >= count) break;
            osier_u8* inside[MANY];
            groups.find(head + next * MANY, inside);
            if (PACK) {
                word moved[MANY];
#pragma unroll
                for (int k = 0; k < (int)MANY; k++) moved[k] = *(const word*)inside[k];
                // Two halves, for registers have 32 bits.
                osier_u32 low = 0, high = 0;
#pragma unroll
                for (int k = 0; k < (int)MANY / 2; k++) {
                    low |= (osier_u32)moved[k] << (8 * W * k);
                    high |= (osier_u32)moved[k + MANY / 2] << (8 * W * k);
                }
                units[next] = (osier_u64)osier_kept(high) << 32 | osier_kept(low);
            } else {
#pragma unroll
                for (int k = 0; k < (int)MANY; k++) *(word*)inside[k] = (word)(unit[r] >> (8 * W * k));
            }
        }
    }
}

template <int W, bool PACK> struct osier_grouped { static const bool value = W == 2 || (W == 1 && PACK); };

template <int W, bool PACK, class P> static __device__ __forceinline__ void osier_move_words(
    const P& places, osier_u8* packed, osier_u32 words, osier_u32 lane
) {
    const int N = W <= 2 ? W : 1;
    if (osier_grouped<W, PACK>::value) {
        const osier_one_by_one<8 / N, P> groups = {places};
        osier_move_groups<N, PACK>(places, groups, packed, words, lane);
    } else osier_move_each<W, PACK>(places, packed, words, lane);
}

template <int W, bool PACK> static __device__ __forceinline__ void osier_move_segment(
    const osier_nest& nest, bool wide, const osier_segment& segment, osier_u8* packed, osier_u32 lane
) {
    const int N = W <= 2 ? W : 1;
    const bool strides = osier_grouped<W, PACK>::value && !nest.dimension[0].table && nest.dimensions;
    if (segment.kind & OSIER_RUN) {
        osier_u8* const inside = segment.base;
        osier_copy_run<W, W == 16 ? 2 : 4>(PACK ? packed : inside, PACK ? inside : packed, segment.words, lane);
    } else if (segment.kind & OSIER_ROWS) {
        const osier_rows<W> rows = {nest, segment};
        if (strides && nest.core.value >= 8 / N) {
            const osier_rows<N> narrow = {nest, segment};
            const osier_by_rows<N, 8 / N> groups = {narrow};
            osier_move_groups<N, PACK>(narrow, groups, packed, segment.words, lane);
        } else osier_move_words<W, PACK>(rows, packed, segment.words, lane);
    } else if (segment.kind & OSIER_MAP) {
        const osier_maps<W> maps = {nest, segment};
        if (strides) {
            const osier_maps<N> narrow = {nest, segment};
            const osier_by_map<N, 8 / N> groups = {narrow};
            osier_move_groups<N, PACK>(narrow, groups, packed, segment.words, lane);
        } else osier_move_words<W, PACK>(maps, packed, segment.words, lane);
    } else if (segment.kind & OSIER_LIST) {
        const osier_lists<W> lists = {nest, segment};
        osier_move_words<W, PACK>(lists, packed, segment.words, lane);
    } else if (segment.kind & OSIER_BOX) {
        const osier_boxes<W> boxes = {nest, segment};
        osier_move_words<W, PACK>(boxes, packed, segment.words, lane);
    } else {
        const osier_anywhere<W> any = {nest, segment, wide};
        osier_move_words<W, PACK>(any, packed, segment.words, lane);
    }
}

template <int W, bool PACK>
static __device__ __forceinline__ void osier_move_general(const osier_general& plan) {
    const osier_range& range = plan.range;
    const osier_nest& nest = plan.nest;
    const bool wide = range.wide;
    const osier_u64 first = (range.start + (W - 1)) / W;
    const osier_u64 last = range.end / W;
    osier_u8* const packed = range.packed - range.start;
    const osier_u32 lane = threadIdx.x % OSIER_LANES;
    const osier_u64 warps = blockDim.x / OSIER_LANES;
    const osier_u64 step = gridDim.x * warps * range.chunk;
    for (osier_u64 at = first + (blockIdx.x * warps + threadIdx.x / OSIER_LANES) * range.chunk; at < last; at += step) {
        const osier_u32 words = (osier_u32)osier_least(range.chunk, last - at);
        for (osier_u32 done = 0; done < words;) {
            osier_segment segment = osier_open<W>(nest, range.layout, wide, at + done, words - done);
            segment.base = osier_kept(segment.base);
            osier_move_segment<W, PACK>(nest, wide, segment, packed + (at + done) * W, lane);
            done += segment.words;
        }
    }
    // Fewer than W bytes before the first word, fewer than W behind the last.
    if (W > 1 && blockIdx.x == 0 && threadIdx.x < 2 * W) {
        const bool behind = threadIdx.x >= W;
        const osier_u64 from = first * W, until = last * W > from ? last * W : from;
        const osier_u64 byte = behind ? until + (threadIdx.x - W) : range.start + threadIdx.x;
        const osier_u64 stop = behind ? range.end : (from < range.end ? from : range.end);
        if (byte < stop) {
            osier_u8* const inside = osier_word_at<W>(nest, range.layout, wide, byte / W) + byte % W;
            if (PACK) packed[byte] = *inside; else *inside = packed[byte];
        }
    }
}
