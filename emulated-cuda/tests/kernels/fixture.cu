// Kernels for the tests of the emulated driver itself.
#include "fixture.cuh"

extern "C" __global__ void add_one(unsigned *data, unsigned count) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) data[i] = plus_one(data[i]);
}

// The sum of each block, by a tree in static shared memory.
extern "C" __global__ void __launch_bounds__(256) block_sum(const unsigned *__restrict__ data, unsigned *sums) {
    __shared__ unsigned part[256];
    unsigned t = threadIdx.x;
    part[t] = data[blockIdx.x * blockDim.x + t];
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        if (t < half) part[t] += part[t + half];
        __syncthreads();
    }
    if (t == 0) sums[blockIdx.x] = part[0];
}

// Reverses each block, through dynamic shared memory.
extern "C" __global__ void reverse(unsigned *data) {
    extern __shared__ unsigned tile[];
    unsigned *mine = data + blockIdx.x * blockDim.x;
    tile[threadIdx.x] = mine[threadIdx.x];
    __syncthreads();
    mine[threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x];
}

// Reverses each warp as often as its number says, and once more; the last may have fewer threads.
extern "C" __global__ void reverse_warps(unsigned *data) {
    __shared__ unsigned part[256];
    const unsigned t = threadIdx.x, first = t / 32 * 32;
    const unsigned last = (first + 32 < blockDim.x ? first + 32 : blockDim.x) - 1;
    for (unsigned round = 0; round <= first / 32; round++) {
        part[t] = data[t];
        __syncwarp();
        data[t] = part[first + last - t];
        __syncwarp();
    }
}

#define COUNT(NAME, OPERATION, VALUE) \
    extern "C" __global__ void NAME(unsigned *cell) { OPERATION(cell, VALUE); }
COUNT(count_add, atomicAdd, 1u)
COUNT(count_or, atomicOr, 1u << (threadIdx.x & 31))

// Half of the block never comes to the barrier.
extern "C" __global__ void lost(unsigned *data) {
    if (threadIdx.x & 1) return;
    __syncthreads();
    data[threadIdx.x] = 1;
}

// A thread of the second warp never comes to its barrier.
extern "C" __global__ void lost_of_warp(unsigned *data) {
    if (threadIdx.x == 40) return;
    __syncwarp();
    data[threadIdx.x] = 1;
}

extern "C" __global__ void trap(unsigned *data) { assert(data[0] == 7); }

extern "C" __global__ void beyond(unsigned char *at, unsigned long long n) { at[n] = 1; }

extern "C" __global__ void askew(const int *from, int *to) { *to = *from; }

// Blocks come one after the other: each waits for its number, and has its last thread pass
// the next on.
extern "C" __global__ void relay(unsigned *turn) {
    if (threadIdx.x == 0) {
        while (atomicAdd(turn, 0u) != blockIdx.x) __nanosleep(100);
    }
    __syncthreads();
    if (threadIdx.x == blockDim.x - 1) atomicAdd(turn, 1u);
}

// Blocks wait until all have come, or someone opens the gate.
extern "C" __global__ void together(unsigned *count, unsigned *gate) {
    if (threadIdx.x != 0) return;
    atomicAdd(count, 1u);
    while (atomicAdd(count, 0u) < gridDim.x && atomicAdd(gate, 0u) == 0) __nanosleep(100);
}

// Two kernels take turns: each counts in the other's word, up to `rounds`.
extern "C" __global__ void ping(unsigned *mine, unsigned *theirs, unsigned rounds, unsigned first) {
    for (unsigned round = 1; round <= rounds; round++) {
        if (first) atomicExch(theirs, round);
        while (atomicAdd(mine, 0u) != round) __nanosleep(100);
        if (!first) atomicExch(theirs, round);
    }
}

// Writes bytes, then says in a word that it has: its last store.
extern "C" __global__ void tell(unsigned char *at, unsigned bytes, unsigned *word, unsigned number) {
    for (unsigned i = threadIdx.x; i < bytes; i += blockDim.x) at[i] = (unsigned char)number;
    __syncthreads();
    if (threadIdx.x == 0) atomicExch(word, number);
}

// Writes bytes, says in a word that it has, and waits for a gate; or says so before it writes them.
extern "C" __global__ void tell_and_wait(unsigned char *at, unsigned bytes, unsigned *word, unsigned number,
                                         const unsigned *gate, unsigned early) {
    if (early && threadIdx.x == 0) __atomic_store_n(word, number, __ATOMIC_RELEASE);
    for (unsigned i = threadIdx.x; i < bytes; i += blockDim.x) at[i] = (unsigned char)number;
    __syncthreads();
    if (threadIdx.x != 0) return;
    if (!early) __atomic_store_n(word, number, __ATOMIC_RELEASE);
    while (__atomic_load_n(gate, __ATOMIC_ACQUIRE) < number) __nanosleep(100);
}

// Each thread stores a word of its own to all memory behind a multicast address.
extern "C" __global__ void spread(unsigned long long *at, unsigned long long first) {
    osier_multimem_store(at + threadIdx.x, first + threadIdx.x);
}

// The same in vectors of four.
extern "C" __global__ void spread_vectors(unsigned *at, unsigned first) {
    unsigned n = first + 4 * threadIdx.x;
    const unsigned all[4] = {n, n + 1, n + 2, n + 3};
    osier_multimem_store(at + 4 * threadIdx.x, all);
}

// Hands bytes on to `take_over`: writes them, then says so in a word, with an order or without.
enum { RELEASED = 0, FENCED = 1, UNORDERED = 2, COUNTED = 3 };
extern "C" __global__ void hand_on(unsigned char *data, unsigned bytes, unsigned *word, unsigned order) {
    for (unsigned i = threadIdx.x; i < bytes; i += blockDim.x) data[i] = (unsigned char)(i + 1);
    __syncthreads();
    if (threadIdx.x != 0) return;
    switch (order) {
    case RELEASED: __atomic_store_n(word, 1u, __ATOMIC_RELEASE); break;
    case COUNTED: __atomic_fetch_add(word, 1u, __ATOMIC_ACQ_REL); break;
    case FENCED: __threadfence(); atomicExch(word, 1u); break;
    default: atomicExch(word, 1u);
    }
}

// Waits until a word is at least `wanted`, then reads the bytes.
extern "C" __global__ void take_over(const unsigned char *data, unsigned bytes, unsigned *word, unsigned wanted,
                                     unsigned *sums, unsigned order) {
    if (threadIdx.x == 0) {
        if (order == RELEASED) while (__atomic_load_n(word, __ATOMIC_ACQUIRE) < wanted) __nanosleep(100);
        else while (atomicAdd(word, 0u) < wanted) __nanosleep(100);
        if (order == FENCED) __threadfence();
    }
    __syncthreads();
    unsigned sum = 0;
    for (unsigned i = threadIdx.x; i < bytes; i += blockDim.x) sum += data[i];
    sums[threadIdx.x] = sum;
}
