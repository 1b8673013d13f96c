// Transposing: blocks of one word that are adjacent on one side along the lines of the
// other. A tile goes through shared memory, so that both sides are accessed in runs.
//
// Words of 1 and 2 bytes are taken in groups of 4 bytes where both sides suit them: a
// lane reads as many lines as a group has words, turns the square in its registers, and
// the tile holds groups.
//
//     from   line 0 |abcd|....      to   line 0 |aeim|....
//            line 1 |efgh|....           line 1 |bfjn|....
//            line 2 |ijkl|....           line 2 |cgko|....
//            line 3 |mnop|....           line 3 |dhlp|....
//
// Lines that begin at any other address, as those of odd length do, are read by the two
// aligned groups around each and written as aligned groups made of two of the tile; what
// no aligned group holds at the ends of a line goes word by word.
#pragma once
#include "osier.cuh"

struct osier_tile_side {
    osier_u8* at;
    osier_i64 line;   // bytes between lines
    osier_i64 plane;  // bytes between planes
};

struct osier_transpose {
    osier_tile_side from;
    osier_tile_side to;
    osier_u64 first;       // packed words
    osier_u64 last;
    osier_u64 from_lines;  // words of a line of `to`
    osier_u64 to_lines;    // words of a line of `from`
    osier_divisor inner;   // tiles along packed lines
    osier_divisor outer;   // tiles across them
    osier_u32 tiles;
    osier_u32 unpacks;     // packed lines are those of `from`, not of `to`
    osier_u32 shifted;     // lines begin anywhere, and have any number of words
    osier_u32 whole;       // all words of all lines are to be moved
};

// The square of G words in each of G groups, its lines and columns exchanged.
template <int G> struct osier_square {
    template <class T> static __device__ __forceinline__ void turn(T*) {}
};

template <> struct osier_square<2> {
    static __device__ __forceinline__ void turn(osier_u32* line) {
        const osier_u32 a = line[0], b = line[1];
        line[0] = __byte_perm(a, b, 0x5410);
        line[1] = __byte_perm(a, b, 0x7632);
    }
};

template <> struct osier_square<4> {
    static __device__ __forceinline__ void turn(osier_u32* line) {
        const osier_u32 a = __byte_perm(line[0], line[1], 0x5140), b = __byte_perm(line[0], line[1], 0x7362);
        const osier_u32 c = __byte_perm(line[2], line[3], 0x5140), d = __byte_perm(line[2], line[3], 0x7362);
        line[0] = __byte_perm(a, c, 0x5410);
        line[1] = __byte_perm(a, c, 0x7632);
        line[2] = __byte_perm(b, d, 0x5410);
        line[3] = __byte_perm(b, d, 0x7632);
    }
};

// A tile: lines of both sides, and where the packed words are among those of the launch.
struct osier_tile {
    const osier_u8* from;
    osier_u8* to;
    osier_u32 lines;      // of `from`
    osier_u32 columns;    // of `to`
    osier_u64 number;     // of the first word
    osier_u64 packed_line;
};

// A group of words at any place, of which so many are there.
template <int W, class T> static __device__ __forceinline__ T osier_gather(const osier_u8* at, osier_u32 words) {
    typedef typename osier_word<W>::type word;
    T group = 0;
#pragma unroll
    for (int e = 0; e < (int)(sizeof(T) / W); e++) {
        if (e < (int)words) group |= (T)((const word*)at)[e] << (8 * W * e);
    }
    return group;
}

// Tiles that a range of packed words cuts: words outside may be read in the layout, which
// is `from` unless it unpacks. As in osier_move_tile, word by word where that matters.
template <int W, int G, bool SHIFTED, class T> static __device__ __forceinline__ void osier_move_cut_tile(
    const osier_transpose& plan, const osier_tile& it, T* tile, osier_u32 lane, osier_u32 warp
) {
    typedef typename osier_word<W>::type word;
    const bool unpacks = plan.unpacks;
#pragma unroll 1
    for (osier_u32 k = warp * G; k < it.lines; k += 8 * G) {
        T moved[G];
        if (lane * G < it.columns) {
#pragma unroll
            for (int j = 0; j < G; j++) {
                const osier_u64 there = it.number + (k + j) * it.packed_line + lane * G;
                const osier_u8* const from = it.from + (osier_i64)(k + j) * plan.from.line + lane * G * W;
                if constexpr (SHIFTED) {
                    T group = 0;
#pragma unroll
                    for (int e = 0; e < G; e++) {
                        const bool inside = !unpacks || (there + e >= plan.first && there + e < plan.last);
                        if (inside && k + j < it.lines && lane * G + e < it.columns) {
                            group |= osier_gather<W, T>(from + e * W, 1) << (8 * W * e);
                        }
                    }
                    moved[j] = group;
                } else if (!unpacks || (there >= plan.first && there < plan.last)) moved[j] = *(const T*)from;
            }
        }
        osier_square<G>::turn(moved);
#pragma unroll
        for (int j = 0; j < G; j++) tile[(j * 32 + lane) * 33 + k / G] = moved[j];
    }
    __syncthreads();
#pragma unroll 1
    for (osier_u32 k = warp; k < it.columns; k += 8) {
        if (lane * G < it.lines) {
            const T value = tile[(k % G * 32 + k / G) * 33 + lane];
            word* const place = (word*)(it.to + (osier_i64)k * plan.to.line) + lane * G;
#pragma unroll
            for (int e = 0; e < G; e++) {
                const osier_u64 there = unpacks ? it.number + (lane * G + e) * it.packed_line + k
                                                : it.number + k * it.packed_line + lane * G + e;
                const bool inside = !SHIFTED || lane * G + e < it.lines;
                if (inside && there >= plan.first && there < plan.last) place[e] = ((const word*)&value)[e];
            }
        }
    }
}

template <int W, int G, class T> static __device__ __forceinline__ void osier_move_tile(
    const osier_transpose& plan, const osier_tile& it, T* tile, osier_u32 lane, osier_u32 warp
) {
    const int ITEMS = 4;
    T moved[ITEMS][G];
    // Places in the tile are told by constants from here on.
    T* const down = tile + lane * 33 + warp;
    const T* const across = tile + warp * 33 + lane;
    const osier_u8* from = it.from + (osier_i64)(warp * G) * plan.from.line + lane * G * W;
    const osier_u32 lines = lane * G < it.columns ? it.lines : 0;
#pragma unroll
    for (int k = 0; k < ITEMS; k++) {
#pragma unroll
        for (int j = 0; j < G; j++) {
            if ((warp + k * 8) * G < lines) moved[k][j] = *(const T*)from;
            if (j + 1 < G) from = osier_kept((osier_u8*)from + plan.from.line);
        }
        from = osier_kept((osier_u8*)from + (osier_i64)(7 * G + 1) * plan.from.line);
    }
#pragma unroll
    for (int k = 0; k < ITEMS; k++) {
        osier_square<G>::turn(moved[k]);
#pragma unroll
        for (int j = 0; j < G; j++) down[j * 32 * 33 + k * 8] = moved[k][j];
    }
    __syncthreads();
    osier_u8* to = it.to + (osier_i64)(warp * G) * plan.to.line + lane * G * W;
    const osier_u32 columns = lane * G < it.lines ? it.columns : 0;
#pragma unroll
    for (int k = 0; k < ITEMS; k++) {
#pragma unroll
        for (int j = 0; j < G; j++) {
            if ((warp + k * 8) * G < columns) *(T*)to = across[(j * 32 + k * 8) * 33];
            if (j + 1 < G) to = osier_kept(to + plan.to.line);
        }
        to = osier_kept(to + (osier_i64)(7 * G + 1) * plan.to.line);
    }
}

// Lines at any addresses, in groups of 4 bytes. A lane takes two aligned groups, and only
// bytes of its line: those at its ends word by word. `before` and `behind` are the words of
// the same lines around the tile.
template <int W, class T> static __device__ __forceinline__ void osier_move_shifted_tile(
    const osier_transpose& plan, const osier_tile& it, T* tile, osier_u32 lane, osier_u32 warp, osier_u64 before,
    osier_u64 behind
) {
    typedef typename osier_word<W>::type word;
    const int G = 4 / W, SIDE = 32 * G;
    const osier_u32 words = it.columns > lane * G ? it.columns - lane * G : 0;
    const bool within = (lane || before) && words + (behind < 2 * G ? behind : 2 * G) >= 2 * G && words >= G;
    const osier_u8* from = osier_kept((osier_u8*)it.from + (osier_i64)(warp * 4 * G) * plan.from.line + lane * 4);
    T* down = tile + lane * 33 + warp * 4;
    int lines = (int)it.lines - (int)(warp * 4 * G);
#pragma unroll(2 * W)
    for (int k = 0; k < 4; k++) {
        T moved[G];
        if (within && lines >= G) {
            osier_u32 low[G], high[G], shift[G];
#pragma unroll
            for (int j = 0; j < G; j++) {
                const osier_u32* const aligned = (const osier_u32*)osier_kept((osier_u8*)((osier_u64)from & ~3ull));
                low[j] = aligned[0];
                high[j] = aligned[1];
                // Modulo 32: the address modulo 4, in bits.
                shift[j] = (osier_u32)(osier_u64)from * 8;
                from = osier_kept((osier_u8*)from + plan.from.line);
            }
#pragma unroll
            for (int j = 0; j < G; j++) moved[j] = __funnelshift_r(low[j], high[j], shift[j]);
        } else {
#pragma unroll 1
            for (int j = 0; j < G; j++) {
                const T group = osier_gather<W, T>(from, j < lines ? words : 0);
#pragma unroll
                for (int e = 0; e < G; e++) if (e == j) moved[e] = group;
                from = osier_kept((osier_u8*)from + plan.from.line);
            }
        }
        lines -= G;
        osier_square<G>::turn(moved);
#pragma unroll
        for (int j = 0; j < G; j++) down[j * 32 * 33] = moved[j];
        down += 1;
    }
    __syncthreads();
    // Whole groups: each has the end of one group of the tile and the start of the next. A
    // lane has one in lines that begin between so many bytes and so many behind an aligned place.
    const osier_u32 bytes = it.lines * W;
    const osier_u32 least = lane * 4 + 4 > bytes ? lane * 4 + 4 - bytes : 0, most = lane ? 3 : 0;
    const osier_u32 span = least <= most ? most - least : 0, start = least <= most ? least : 4;
    osier_u8* to = osier_kept(it.to + (osier_i64)(warp * 4 * G) * plan.to.line + lane * 4);
    const T* across = tile + warp * 4 * 33 + lane;
    const T* previous = across - (lane ? 1 : 0);
    int columns = (int)it.columns - (int)(warp * 4 * G);
#pragma unroll(2 * W)
    for (int k = 0; k < 4; k++) {
#pragma unroll
        for (int j = 0; j < G; j++) {
            const osier_u32 at = (osier_u32)(osier_u64)to;
            if (j < columns && (at & 3) - start <= span) {
                T* const there = (T*)osier_kept((osier_u8*)((osier_u64)to & ~3ull));
                *there = __funnelshift_l(previous[j * 32 * 33], across[j * 32 * 33], at * 8);
            }
            to = osier_kept(to + plan.to.line);
        }
        across += 33;
        previous += 33;
        columns -= G;
    }
    // What is left at both ends of a line: less than a group.
    const osier_u32 column = threadIdx.x % SIDE;
    if (threadIdx.x < 2 * SIDE && column < it.columns) {
        osier_u8* const line = it.to + (osier_i64)column * plan.to.line;
        const osier_u32 odd = (osier_u32)(osier_u64)line & 3;
        const osier_u32 head = odd ? (bytes < 4 - odd ? bytes : 4 - odd) : 0;
        const osier_u32 first = threadIdx.x < SIDE ? 0 : head + ((bytes - head) & ~3u);
        const osier_u32 last = threadIdx.x < SIDE ? head : bytes;
        const word* const row = (const word*)(tile + (column % G * 32 + column / G) * 33);
#pragma unroll
        for (int e = 0; e < G - 1; e++) {
            const osier_u32 byte = first + e * W;
            if (byte < last) *(word*)(line + byte) = row[byte / W];
        }
    }
}

// 256 threads: 8 warps, each with 4 times G lines of 32 groups.
template <int W, int G> static __device__ __forceinline__ void osier_move_transposed(const osier_transpose& plan) {
    typedef typename osier_word<W * G>::type group;
    const osier_u32 SIDE = 32 * G;
    __shared__ group tile[G * 32 * 33];
    const osier_u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const bool unpacks = plan.unpacks;
    for (osier_u32 at = blockIdx.x; at < plan.tiles; at += gridDim.x) {
        const osier_u32 strip = osier_quotient(plan.inner, at);
        const osier_u32 plane = osier_quotient(plan.outer, strip);
        const osier_u64 inner = (osier_u64)(at - strip * (osier_u32)plan.inner.value) * SIDE;
        const osier_u64 outer = (osier_u64)(strip - plane * (osier_u32)plan.outer.value) * SIDE;
        const osier_u64 line = unpacks ? outer : inner, column = unpacks ? inner : outer;
        osier_tile it;
        it.from = plan.from.at + (osier_i64)plane * plan.from.plane + (osier_i64)line * plan.from.line + column * W;
        it.to = plan.to.at + (osier_i64)plane * plan.to.plane + (osier_i64)column * plan.to.line + line * W;
        it.lines = (osier_u32)(plan.from_lines - line < SIDE ? plan.from_lines - line : SIDE);
        it.columns = (osier_u32)(plan.to_lines - column < SIDE ? plan.to_lines - column : SIDE);
        // Whether the range holds the tile. Shifted groups have words beside it, too, where
        // lines go on there.
        const osier_u64 right = plan.to_lines - column - it.columns;
        bool inside = true;
        if (!plan.whole) {
            it.packed_line = unpacks ? plan.to_lines : plan.from_lines;
            it.number = (plane * (unpacks ? plan.from_lines : plan.to_lines) + outer) * it.packed_line + inner;
            const osier_u64 behind = it.number + ((unpacks ? it.lines : it.columns) - 1) * it.packed_line
                + (unpacks ? it.columns : it.lines);
            const osier_u32 around = plan.shifted ? G : 0;
            inside = it.number >= plan.first + (column ? around : 0) && behind + (right ? around : 0) <= plan.last;
        }
        if constexpr (G > 1) {
            if (plan.shifted) {
                if (inside) osier_move_shifted_tile<W>(plan, it, tile, lane, warp, column, right);
                else osier_move_cut_tile<W, G, true>(plan, it, tile, lane, warp);
            } else if (inside) osier_move_tile<W, G>(plan, it, tile, lane, warp);
            else osier_move_cut_tile<W, G, false>(plan, it, tile, lane, warp);
        } else if (inside) osier_move_tile<W, G>(plan, it, tile, lane, warp);
        else osier_move_cut_tile<W, G, false>(plan, it, tile, lane, warp);
        __syncthreads();
    }
}
