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
    osier_u32 group;       // words of one access
    osier_u32 unpacks;     // packed lines are those of `from`, not of `to`
    osier_u32 unused;
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

// Tiles that a range of packed words cuts: words outside may be read in the layout, which
// is `from` unless it unpacks. As in osier_move_tile, word by word where that matters.
template <int W, int G, class T> static __device__ __forceinline__ void osier_move_cut_tile(
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
                if (!unpacks || (there >= plan.first && there < plan.last)) {
                    moved[j] = *(const T*)(it.from + (osier_i64)(k + j) * plan.from.line + lane * G * W);
                }
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
                if (there >= plan.first && there < plan.last) place[e] = ((const word*)&value)[e];
            }
        }
    }
}

template <int W, int G, class T> static __device__ __forceinline__ void osier_move_tile(
    const osier_transpose& plan, const osier_tile& it, T* tile, osier_u32 lane, osier_u32 warp
) {
    const int ITEMS = 4;
    T moved[ITEMS][G];
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
        for (int j = 0; j < G; j++) tile[(j * 32 + lane) * 33 + warp + k * 8] = moved[k][j];
    }
    __syncthreads();
    osier_u8* to = it.to + (osier_i64)(warp * G) * plan.to.line + lane * G * W;
    const osier_u32 columns = lane * G < it.lines ? it.columns : 0;
#pragma unroll
    for (int k = 0; k < ITEMS; k++) {
#pragma unroll
        for (int j = 0; j < G; j++) {
            if ((warp + k * 8) * G < columns) *(T*)to = tile[(j * 32 + warp + k * 8) * 33 + lane];
            if (j + 1 < G) to = osier_kept(to + plan.to.line);
        }
        to = osier_kept(to + (osier_i64)(7 * G + 1) * plan.to.line);
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
        it.packed_line = unpacks ? plan.to_lines : plan.from_lines;
        it.number = (plane * (unpacks ? plan.from_lines : plan.to_lines) + outer) * it.packed_line + inner;
        const osier_u64 behind = it.number + ((unpacks ? it.lines : it.columns) - 1) * it.packed_line
            + (unpacks ? it.columns : it.lines);
        if (it.number < plan.first || behind > plan.last) osier_move_cut_tile<W, G>(plan, it, tile, lane, warp);
        else osier_move_tile<W, G>(plan, it, tile, lane, warp);
        __syncthreads();
    }
}

template <int W> static __device__ __forceinline__ void osier_transpose_by(const osier_transpose& plan) {
    const int G = W < 4 ? 4 / W : 1;
    if (G > 1 && plan.group == G) osier_move_transposed<W, G>(plan);
    else osier_move_transposed<W, 1>(plan);
}
