// Transposing: blocks of one word that are adjacent in memory along one loop and
// adjacent in the packed stream along the other. A tile of 32 x 32 words goes
// through shared memory, so that both sides are accessed in runs.
#pragma once
#include "osier.cuh"

struct osier_transpose {
    osier_range range;       // a whole number of words
    osier_u64 rows;          // the inner loop: adjacent in the packed stream
    osier_u64 columns;       // the outer loop: adjacent in memory
    osier_i64 row_stride;    // bytes
    osier_u64 planes;        // a loop around both
    osier_i64 plane_stride;  // bytes
};

// 256 threads: 8 rows of 32.
template <int W, bool PACK>
static __device__ __forceinline__ void osier_move_transposed(const osier_transpose& plan) {
    typedef typename osier_word<W>::type word;
    const osier_u32 TILE = 32;
    __shared__ word tile[32][33];
    const osier_u32 lane = threadIdx.x % TILE, line = threadIdx.x / TILE;
    const osier_u32 lines = blockDim.x / TILE;
    const osier_u64 down = (plan.rows + TILE - 1) / TILE, across = (plan.columns + TILE - 1) / TILE;
    const osier_u64 tiles = down * across * plan.planes;
    const osier_u64 first = plan.range.start / W, last = plan.range.end / W;
    word* const packed = (word*)(plan.range.packed - plan.range.start);
    for (osier_u64 at = blockIdx.x; at < tiles; at += gridDim.x) {
        const osier_u64 plane = at / (down * across), inside = at % (down * across);
        const osier_u64 row0 = inside % down * TILE, column0 = inside / down * TILE;
        osier_u8* const memory = plan.range.layout + (osier_i64)plane * plan.plane_stride;
        const osier_u64 before = plane * plan.columns * plan.rows;
        for (osier_u32 k = line; k < TILE; k += lines) {
            // Pack reads memory along the columns; unpack reads packed along the rows.
            const osier_u64 row = row0 + (PACK ? k : lane), column = column0 + (PACK ? lane : k);
            const osier_u64 number = before + column * plan.rows + row;
            if (row < plan.rows && column < plan.columns && number >= first && number < last) {
                const word* const from = PACK
                    ? (const word*)(memory + (osier_i64)row * plan.row_stride) + column
                    : packed + number;
                tile[k][lane] = *from;
            }
        }
        __syncthreads();
        for (osier_u32 k = line; k < TILE; k += lines) {
            const osier_u64 row = row0 + (PACK ? lane : k), column = column0 + (PACK ? k : lane);
            const osier_u64 number = before + column * plan.rows + row;
            if (row < plan.rows && column < plan.columns && number >= first && number < last) {
                word* const to = PACK
                    ? packed + number
                    : (word*)(memory + (osier_i64)row * plan.row_stride) + column;
                *to = tile[lane][k];
            }
        }
        __syncthreads();
    }
}
