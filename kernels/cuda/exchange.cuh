// A reduction to all ranks in one kernel per rank: each writes what it has into an inbox of
// every other, waits for what they write into its own, and combines all of it.
//
// ```text
// short  two words {4 bytes, number} for each 8 bytes: a word is there when its number is
// long   words of 16 bytes, then one number for the block, released
// ```
//
// Elements are combined in the order of the balanced tree (collectives/src/balanced.rs), so
// all ranks have the same bits. A block counts its exchanges on the device, so that replayed
// graphs need no host. A number has one of two parities, each with words of its own: a rank
// that is one exchange ahead, and none is more, writes beside those that are still read.
//
// Waits end when the host says stop. A rank that has nothing to give, for its call has failed,
// marks its numbers.
//
// Sources: NVIDIA NCCL documentation 2.20, protocols LL and Simple (data with flags in one
// store of 8 bytes; data, then a flag); PTX ISA 8.0, memory consistency model (release and
// acquire at system scope, accesses of 8 bytes are whole).
#pragma once
#include "reduce.cuh"

enum { OSIER_MOST_RANKS = 8, OSIER_SHORT_BLOCKS = 4, OSIER_LONG_BLOCKS = 16, OSIER_INBOX_SLOT = 4096 };
enum { OSIER_LONG_AT = 2 * OSIER_MOST_RANKS * OSIER_SHORT_BLOCKS * OSIER_INBOX_SLOT,
       OSIER_FLAGS_AT = OSIER_LONG_AT + 2 * OSIER_MOST_RANKS * OSIER_LONG_BLOCKS * OSIER_INBOX_SLOT,
       OSIER_FLAG_BYTES = 16,
       OSIER_SHORT_BYTES = 8192 };

// Numbers go from 1 to this one; the bit above marks those of a rank that has failed.
#define OSIER_LAST_NUMBER 0x7ffffffeu
#define OSIER_FAILED 0x80000000u
// In place of the rank that failed.
#define OSIER_STOPPED 0xffffffffu

// `Argument` of kernels/src/exchange.rs, field by field.
struct osier_exchange {
    osier_u8* inboxes[OSIER_MOST_RANKS];
    const osier_u8* send;
    osier_u8* recv;
    osier_u64 bytes;
    osier_u32* numbers;        // of exchanges, by block
    const osier_u32* stop;
    osier_u32* verdict;        // 1 + a rank that failed, or stopped
    osier_u8 ranks[OSIER_MOST_RANKS];  // by leaf of a full tree
    osier_u32 present;         // leaves that have a rank
    osier_u32 rank;
    osier_u32 size;
    osier_u32 operation;
    osier_u32 failed;
    osier_u32 unused;
};

// Accesses to words that others write or read meanwhile. The host's are atomic one by one.
static __device__ __forceinline__ void osier_put(osier_u8* at, osier_pair pair) {
#ifdef __CUDA_ARCH__
    asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(pair.low), "l"(pair.high) : "memory");
#else
    __atomic_store_n((osier_u64*)at, pair.low, __ATOMIC_RELAXED);
    __atomic_store_n((osier_u64*)at + 1, pair.high, __ATOMIC_RELAXED);
#endif
}

static __device__ __forceinline__ osier_pair osier_take(const osier_u8* at) {
    osier_pair pair;
#ifdef __CUDA_ARCH__
    asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];" : "=l"(pair.low), "=l"(pair.high) : "l"(at) : "memory");
#else
    pair.low = __atomic_load_n((const osier_u64*)at, __ATOMIC_RELAXED);
    pair.high = __atomic_load_n((const osier_u64*)at + 1, __ATOMIC_RELAXED);
#endif
    return pair;
}

static __device__ __forceinline__ void osier_release(osier_u8* at, osier_u32 number) {
#ifdef __CUDA_ARCH__
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(number) : "memory");
#else
    __atomic_store_n((osier_u32*)at, number, __ATOMIC_RELEASE);
#endif
}

static __device__ __forceinline__ osier_u32 osier_acquire(const osier_u8* at) {
    osier_u32 number;
#ifdef __CUDA_ARCH__
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(number) : "l"(at) : "memory");
#else
    number = __atomic_load_n((const osier_u32*)at, __ATOMIC_ACQUIRE);
#endif
    return number;
}

// How a wait ends without data.
struct osier_patience {
    const osier_u8* stop;
    osier_u32 looks;
    osier_u32 verdict;

    // Whether to look again. The host's word is far, so it is asked now and then.
    __device__ __forceinline__ bool goes_on() {
        if (verdict == OSIER_STOPPED) return false;
#ifdef __CUDA_ARCH__
        if ((++looks & 255) == 0) {
            if (osier_acquire(stop)) verdict = OSIER_STOPPED;
            else if (looks > (1u << 14)) __nanosleep(200);
        }
#else
        if (osier_acquire(stop)) verdict = OSIER_STOPPED;
        __nanosleep(100);
#endif
        return verdict != OSIER_STOPPED;
    }
    // Whether this is the number; notes that its rank has failed.
    __device__ __forceinline__ bool is(osier_u32 found, osier_u32 number, osier_u32 rank) {
        if ((found & ~OSIER_FAILED) != number) return false;
        if (found & OSIER_FAILED && !verdict) verdict = 1 + rank;
        return true;
    }
};

static __device__ __forceinline__ osier_u32 osier_short_at(osier_u32 parity, osier_u32 from) {
    return ((parity * OSIER_MOST_RANKS + from) * OSIER_SHORT_BLOCKS + blockIdx.x) * OSIER_INBOX_SLOT + 16 * threadIdx.x;
}

static __device__ __forceinline__ osier_u32 osier_long_at(osier_u32 parity, osier_u32 from) {
    return OSIER_LONG_AT + ((parity * OSIER_MOST_RANKS + from) * OSIER_LONG_BLOCKS + blockIdx.x) * OSIER_INBOX_SLOT + 16 * threadIdx.x;
}

static __device__ __forceinline__ osier_u32 osier_flag_at(osier_u32 parity, osier_u32 from) {
    return OSIER_FLAGS_AT + ((parity * OSIER_MOST_RANKS + from) * OSIER_LONG_BLOCKS + blockIdx.x) * OSIER_FLAG_BYTES;
}

// Eight bytes of a buffer from an offset on, as far as there are any.
static __device__ __forceinline__ osier_u64 osier_read_word(const osier_u8* from, osier_u64 at, osier_u64 bytes) {
    if (at + 8 <= bytes && ((osier_u64)from & 7) == 0) return *(const osier_u64*)(from + at);
    osier_u64 word = 0;
    for (osier_u32 k = 0; k < 8 && at + k < bytes; k++) word |= (osier_u64)from[at + k] << 8 * k;
    return word;
}

static __device__ __forceinline__ void osier_write_word(osier_u8* to, osier_u64 at, osier_u64 bytes, osier_u64 word) {
    if (at + 8 <= bytes && ((osier_u64)to & 7) == 0) {
        *(osier_u64*)(to + at) = word;
        return;
    }
    for (osier_u32 k = 0; k < 8 && at + k < bytes; k++) to[at + k] = (osier_u8)(word >> 8 * k);
}

// The leaves of a full tree combined; those that are not present count for nothing.
template <class O> static __device__ __forceinline__ osier_u64 osier_tree(
    osier_u32 operation, osier_u32 present, osier_u64 (&words)[OSIER_MOST_RANKS]
) {
    typedef typename O::element T;
    const int N = 8 / (int)sizeof(T);
    union group {
        osier_u64 word;
        T lane[N];
        __device__ __forceinline__ group() {}
    };
#pragma unroll 1
    for (osier_u32 level = 0; level < 3; level++) {
        osier_u32 above = 0;
#pragma unroll
        for (int k = 0; k < OSIER_MOST_RANKS / 2; k++) {
            group left, right;
            left.word = words[2 * k];
            right.word = words[2 * k + 1];
            if (present >> (2 * k + 1) & 1) O::template apply<N>(operation, left.lane, right.lane);
            words[k] = left.word;
            above |= (present >> 2 * k & 1) << k;
        }
        present = above;
    }
    return words[0];
}

template <class O> static __device__ __forceinline__ void osier_exchange_short(
    const osier_exchange& plan, osier_u32 number, osier_patience& patience
) {
    const osier_u64 at = ((osier_u64)blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (at >= plan.bytes) return;
    const osier_u32 parity = number & 1;
    const osier_u64 own = plan.failed ? 0 : osier_read_word(plan.send, at, plan.bytes);
    const osier_u64 mark = (osier_u64)(number | (plan.failed ? OSIER_FAILED : 0)) << 32;
    const osier_pair both = {(own & 0xffffffffu) | mark, own >> 32 | mark};
#pragma unroll
    for (osier_u32 to = 0; to < OSIER_MOST_RANKS; to++) {
        if (to < plan.size && to != plan.rank) osier_put(plan.inboxes[to] + osier_short_at(parity, plan.rank), both);
    }
    const osier_u8* const inbox = plan.inboxes[plan.rank];
    osier_u64 words[OSIER_MOST_RANKS];
#pragma unroll
    for (int leaf = 0; leaf < OSIER_MOST_RANKS; leaf++) {
        words[leaf] = own;
        const osier_u32 from = plan.ranks[leaf];
        if (!(plan.present >> leaf & 1) || from == plan.rank) continue;
        const osier_u8* const place = inbox + osier_short_at(parity, from);
        osier_pair got = osier_take(place);
        while (!patience.is((osier_u32)(got.low >> 32), number, from) || !patience.is((osier_u32)(got.high >> 32), number, from)) {
            if (!patience.goes_on()) break;
            got = osier_take(place);
        }
        words[leaf] = (got.low & 0xffffffffu) | got.high << 32;
    }
    const osier_u64 result = osier_tree<O>(plan.operation, plan.present, words);
    if (!patience.verdict && !plan.failed) osier_write_word(plan.recv, at, plan.bytes, result);
}

template <class O> static __device__ __forceinline__ void osier_exchange_long(
    const osier_exchange& plan, osier_u32 number, osier_patience& patience
) {
    const osier_u64 at = ((osier_u64)blockIdx.x * blockDim.x + threadIdx.x) * 16;
    const osier_u32 parity = number & 1;
    osier_pair own = {0, 0};
    if (at < plan.bytes && !plan.failed) {
        own.low = osier_read_word(plan.send, at, plan.bytes);
        own.high = osier_read_word(plan.send, at + 8, plan.bytes);
    }
    if (at < plan.bytes) {
#pragma unroll
        for (osier_u32 to = 0; to < OSIER_MOST_RANKS; to++) {
            if (to < plan.size && to != plan.rank) osier_put(plan.inboxes[to] + osier_long_at(parity, plan.rank), own);
        }
    }
    __threadfence_system();
    __syncthreads();
    // A thread for each rank: one store behind all of the block's.
    const osier_u32 mark = number | (plan.failed ? OSIER_FAILED : 0);
#pragma unroll
    for (osier_u32 to = 0; to < OSIER_MOST_RANKS; to++) {
        if (threadIdx.x == to && to < plan.size && to != plan.rank) osier_release(plan.inboxes[to] + osier_flag_at(parity, plan.rank), mark);
    }
    const osier_u8* const inbox = plan.inboxes[plan.rank];
    for (osier_u32 from = 0; from < plan.size; from++) {
        if (from == plan.rank) continue;
        const osier_u8* const flag = inbox + osier_flag_at(parity, from);
        while (!patience.is(osier_acquire(flag), number, from)) {
            if (!patience.goes_on()) break;
        }
    }
    if (at >= plan.bytes || patience.verdict || plan.failed) return;
    osier_u64 low[OSIER_MOST_RANKS], high[OSIER_MOST_RANKS];
#pragma unroll
    for (int leaf = 0; leaf < OSIER_MOST_RANKS; leaf++) {
        low[leaf] = own.low;
        high[leaf] = own.high;
        const osier_u32 from = plan.ranks[leaf];
        if (!(plan.present >> leaf & 1) || from == plan.rank) continue;
        const osier_pair got = osier_take(inbox + osier_long_at(parity, from));
        low[leaf] = got.low;
        high[leaf] = got.high;
    }
    const osier_u64 first = osier_tree<O>(plan.operation, plan.present, low);
    osier_write_word(plan.recv, at, plan.bytes, first);
    if (at + 8 < plan.bytes) osier_write_word(plan.recv, at + 8, plan.bytes, osier_tree<O>(plan.operation, plan.present, high));
}

// Numbers begin anew one day, and a word that nobody has written since must not hold the one
// that is waited for: now and then, two exchanges running, those of both parities are cleared.
// Others write there no sooner than this rank has begun the next exchange.
static __device__ __forceinline__ void osier_clear(const osier_exchange& plan, osier_u32 number) {
    if ((number & 0xfffff) > 1 || blockIdx.x >= OSIER_SHORT_BLOCKS) return;
    const osier_pair nothing = {0, 0};
    osier_u8* const inbox = plan.inboxes[plan.rank];
    for (osier_u32 from = 0; from < OSIER_MOST_RANKS; from++) {
        osier_put(inbox + osier_short_at(number & 1, from), nothing);
        if (threadIdx.x == 0) osier_release(inbox + osier_flag_at(number & 1, from), 0);
    }
}

template <class O> static __device__ __forceinline__ void osier_exchange_all(const osier_exchange& plan) {
    const osier_u32 before = plan.numbers[blockIdx.x];
    const osier_u32 number = before >= OSIER_LAST_NUMBER ? 1 : before + 1;
    osier_patience patience = {(const osier_u8*)plan.stop, 0, 0};
    if (plan.bytes <= OSIER_SHORT_BYTES) osier_exchange_short<O>(plan, number, patience);
    else osier_exchange_long<O>(plan, number, patience);
    if (patience.verdict) *(volatile osier_u32*)plan.verdict = patience.verdict;
    // All threads have read what is cleared and counted.
    __syncthreads();
    osier_clear(plan, number);
    if (threadIdx.x == 0) plan.numbers[blockIdx.x] = number;
}
