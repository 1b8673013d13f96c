// What pack kernels are measured against; no message uses these.
#include "osier.cuh"

// A linear scan: the thread of each word goes through the runs from the first one on
// until it meets its own, as engines do that keep blocks without an index.
struct osier_scan {
    osier_u8* layout;           // origin of the layout
    osier_u8* packed;
    const osier_i64* offsets;   // of each run
    const osier_u64* lengths;   // bytes of each run
    osier_u64 runs;
    osier_u64 words;
    osier_u64 sample;           // one group of 32 words out of so many
};

template <int W>
static __device__ __forceinline__ void osier_scan_runs(const osier_scan& plan) {
    typedef typename osier_word<W>::type word;
    const osier_u64 step = (osier_u64)gridDim.x * blockDim.x;
    for (osier_u64 i = (osier_u64)blockIdx.x * blockDim.x + threadIdx.x;; i += step) {
        const osier_u64 number = i / 32 * 32 * plan.sample + i % 32;
        if (i / 32 * 32 * plan.sample >= plan.words) return;
        if (number >= plan.words) continue;
        osier_u64 rest = number * W, run = 0;
#pragma unroll 1
        while (rest >= plan.lengths[run]) rest -= plan.lengths[run++];
        *(word*)(plan.packed + number * W) = *(const word*)(plan.layout + plan.offsets[run] + rest);
    }
}

extern "C" __global__ void osier_baseline_scan_w1(osier_scan plan) { osier_scan_runs<1>(plan); }
extern "C" __global__ void osier_baseline_scan_w2(osier_scan plan) { osier_scan_runs<2>(plan); }
extern "C" __global__ void osier_baseline_scan_w4(osier_scan plan) { osier_scan_runs<4>(plan); }
extern "C" __global__ void osier_baseline_scan_w8(osier_scan plan) { osier_scan_runs<8>(plan); }
extern "C" __global__ void osier_baseline_scan_w16(osier_scan plan) { osier_scan_runs<16>(plan); }

// A warp for each unit of work: a piece of a run, cut on the host and listed with its
// place in the packed bytes, as Wu and others do in Open MPI (HPDC 2016).
struct osier_unit {
    osier_i64 at;               // from the origin of the layout
    osier_u64 to;               // from the first packed byte
    osier_u64 bytes;
};

struct osier_units {
    osier_u8* layout;
    osier_u8* packed;
    const osier_unit* units;
    osier_u64 count;
};

template <int W>
static __device__ __forceinline__ void osier_warp_per_unit(const osier_units& plan) {
    typedef typename osier_word<W>::type word;
    const osier_u32 ITEMS = 4, lane = threadIdx.x % 32;
    const osier_u64 warps = (osier_u64)gridDim.x * blockDim.x / 32;
    osier_u64 number = ((osier_u64)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    for (; number < plan.count; number += warps) {
        const osier_unit unit = plan.units[number];
        const word* const from = (const word*)(plan.layout + unit.at);
        word* const to = (word*)(plan.packed + unit.to);
        const osier_u32 words = (osier_u32)(unit.bytes / W);
        for (osier_u32 first = lane; first < words; first += 32 * ITEMS) {
            word moved[ITEMS];
#pragma unroll
            for (osier_u32 k = 0; k < ITEMS; k++) {
                if (first + 32 * k < words) moved[k] = from[first + 32 * k];
            }
#pragma unroll
            for (osier_u32 k = 0; k < ITEMS; k++) {
                if (first + 32 * k < words) to[first + 32 * k] = moved[k];
            }
        }
    }
}

extern "C" __global__ void osier_baseline_units_w1(osier_units plan) { osier_warp_per_unit<1>(plan); }
extern "C" __global__ void osier_baseline_units_w2(osier_units plan) { osier_warp_per_unit<2>(plan); }
extern "C" __global__ void osier_baseline_units_w4(osier_units plan) { osier_warp_per_unit<4>(plan); }
extern "C" __global__ void osier_baseline_units_w8(osier_units plan) { osier_warp_per_unit<8>(plan); }
extern "C" __global__ void osier_baseline_units_w16(osier_units plan) { osier_warp_per_unit<16>(plan); }

// Reads sectors of 32 bytes, each once, in halves of 16 bytes, and writes as many
// bytes as a pack of them would.
struct osier_gather {
    const osier_u8* memory;     // where sector 0 begins
    osier_pair* packed;
    const osier_u32* sectors;
    osier_u64 count;
    osier_u64 share;            // halves written out of each 1024 that are read
};

extern "C" __global__ void osier_baseline_gather(osier_gather plan) {
    const osier_u32 ITEMS = 4;
    const osier_u64 halves = 2 * plan.count;
    const osier_u64 groups = (halves + 256 * ITEMS - 1) / (256 * ITEMS);
    for (osier_u64 group = blockIdx.x; group < groups; group += gridDim.x) {
        osier_pair found[ITEMS];
#pragma unroll
        for (osier_u32 k = 0; k < ITEMS; k++) {
            const osier_u64 half = (group * ITEMS + k) * 256 + threadIdx.x;
            found[k].low = found[k].high = 0;
            if (half < halves) {
                const osier_u8* const sector = plan.memory + (osier_u64)plan.sectors[half / 2] * 32;
                found[k] = ((const osier_pair*)sector)[half % 2];
            }
        }
#pragma unroll
        for (osier_u32 k = 0; k < ITEMS; k++) {
            const osier_u32 place = k * 256 + threadIdx.x;
            // The second condition keeps reads alive whose bytes go nowhere.
            if (place < plan.share || (found[k].low ^ found[k].high) == 0x5ee7a11c0ffee123ull) {
                plan.packed[group * plan.share + (place < plan.share ? place : 0)] = found[k];
            }
        }
    }
}

extern "C" __global__ void osier_baseline_empty(osier_u64 nothing) { (void)nothing; }

// Keeps processors busy without touching memory: `rounds` dependent steps a thread.
struct osier_busy {
    osier_u32* sink;            // never written, but the compiler cannot know
    osier_u32 seed;
    osier_u32 rounds;
};

extern "C" __global__ void osier_baseline_busy(osier_busy plan) {
    osier_u32 state = plan.seed + threadIdx.x;
#pragma unroll 1
    for (osier_u32 round = 0; round < plan.rounds; round++) state = state * 1664525u + 1013904223u;
    if (plan.sink != 0 && state == plan.seed) *plan.sink = state;
}
