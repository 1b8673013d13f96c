// Keys that are spread over ranks go into buckets, one of each rank, and are counted by their last
// digits: in one kernel, whose blocks and warps reserve places, put and get by themselves.
#include "osier_device.cuh"

// Words that lie in the heap are of all ranks, others are this device's.
struct example_buckets_plan {
    osier_team team;
    const osier_word *keys;
    osier_word *packed;      // size x count: keys for each rank
    osier_word *filled;      // size: how many, in the beginning 0
    osier_word *places;      // size: where they begin in the rank's bucket
    osier_word *sizes;       // size: keys of each bucket
    osier_word *smallest;    // 1
    osier_word *met;         // 1: blocks at a barrier
    osier_word *bucket;      // in the heap, size x count: keys from rank x width on
    osier_word *taken;       // in the heap, 1: places of it, in the beginning 0
    osier_word *least;       // in the heap, size: the smallest key of each bucket
    osier_word *digits;      // in the heap: digit d is counted by rank d % size, at d / size
    osier_word count;        // keys of this rank
    osier_word width;        // keys are less than size x width
    osier_word base;         // digits are the rest by it
};

// Counts digits, and gathers keys for each rank.
static __device__ __forceinline__ void example_buckets_gather(const example_buckets_plan &plan) {
    const osier_team &team = plan.team;
    const osier_word threads = (osier_word)gridDim.x * blockDim.x;
    for (osier_word i = blockIdx.x * blockDim.x + threadIdx.x; i < plan.count; i += threads) {
        const osier_word key = plan.keys[i], digit = key % plan.base, rank = key / plan.width;
        osier_signal_add(team, plan.digits + digit / team.size, 1, (unsigned)(digit % team.size));
        plan.packed[rank * plan.count + osier_add_release(plan.filled + rank, 1)] = key;
    }
}

// A block for each rank: reserves places, and puts the keys there.
static __device__ __forceinline__ void example_buckets_put(const example_buckets_plan &plan) {
    const osier_team &team = plan.team;
    for (unsigned rank = blockIdx.x; rank < team.size; rank += gridDim.x) {
        const osier_word keys = plan.filled[rank];
        if (threadIdx.x == 0) plan.places[rank] = osier_signal_add(team, plan.taken, keys, rank);
        __syncthreads();
        osier_put_block(
            team, plan.bucket + plan.places[rank], plan.packed + rank * plan.count, keys * sizeof(osier_word), rank
        );
    }
}

// A warp for each rank: tells it the smallest key of this one, and asks for the size of its bucket.
static __device__ __forceinline__ void example_buckets_tell(const example_buckets_plan &plan) {
    const osier_team &team = plan.team;
    if (threadIdx.x == 0) {
        osier_word least = ~0ull;
        for (osier_word i = 0; i < *plan.taken; i++) least = plan.bucket[i] < least ? plan.bucket[i] : least;
        *plan.smallest = least;
    }
    __syncthreads();
    for (unsigned rank = threadIdx.x / 32; rank < team.size; rank += blockDim.x / 32) {
        osier_put_warp(team, plan.least + team.rank, plan.smallest, sizeof(osier_word), rank);
        osier_get_warp(team, plan.sizes + rank, plan.taken, sizeof(osier_word), rank);
    }
}

extern "C" __global__ void example_buckets(example_buckets_plan plan) {
    const osier_team &team = plan.team;
    example_buckets_gather(plan);
    if (!osier_grid_barrier(team, plan.met)) return;
    example_buckets_put(plan);
    if (!osier_grid_barrier(team, plan.met)) return;
    if (blockIdx.x != 0) return;
    if (!osier_barrier_block(team)) return;
    example_buckets_tell(plan);
    osier_barrier_block(team);
}
