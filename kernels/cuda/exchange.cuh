// A reduction to all ranks in one kernel per rank: each writes what it has into an inbox of
// every other, waits for what they write into its own, and combines all of it.
//
// ```text
// short  two words {4 bytes, number} for each 8 bytes: a word is there when its number is
// long   words of 16 bytes, then the block's flag, released
// ```
//
// Elements are combined in the order of the balanced tree (collectives/src/balanced.rs), so
// all ranks have the same bits. Exchanges are counted on the device, so that replayed graphs
// need no host. A number has one of two parities, each with words of its own: a rank that is
// one exchange ahead, and none is more, writes beside those that are still read.
//
// Each block has a flag, in both ways: the number, and what the rank combines (its signature).
// A rank that has nothing to give, for its call has failed, marks the number. Who waits for
// words for long looks at block 0's flag, so no words are awaited from a rank that has failed
// or combines something else. Block 0 awaits the flags of all, also when there will be no
// result: a rank that went on sooner could be two exchanges ahead of one that is still reading.
// The host says which ranks are gone. Waits for one of them end behind one more look: a rank may
// leave its job when its own kernel has ended, and its stores are there by then. Where they are
// not, the exchange is stopped: all its waits end, and launches behind it neither store nor wait,
// as others may still read. The last block's last store tells the host that all
// is done, and how.
//
// Where a switch has multicast, each word is stored once, to all inboxes, the own among them,
// where nobody reads it. Its address is an alias of each inbox's own, and only a fence of
// aliases orders accesses by the two: it stands between long words and their flag. The flag is
// stored to one rank after the other, as a release by an alias is none for who reads it by the
// other address. The end of a kernel orders aliases, too, and so what is read and cleared
// before what others store there next. Short words have no flag behind them: that 8 bytes
// arrive whole by an alias, too, the model does not say, and NCCL's AllReduce_AGxLLMC relies on.
//
// Sources: NVIDIA NCCL documentation 2.20, protocols LL and Simple (data with flags in one
// store of 8 bytes; data, then a flag); PTX ISA 8.0, memory consistency model (release and
// acquire at system scope, accesses of 8 bytes are whole); PTX ISA 8.1, multimem; memory
// consistency model, aliases and causality order; NCCL 2.27, symmetric kernels.
#pragma once
#include "reduce.cuh"

enum { OSIER_MOST_RANKS = 8, OSIER_SHORT_BLOCKS = 4, OSIER_LONG_BLOCKS = 16, OSIER_INBOX_SLOT = 4096 };
enum { OSIER_LONG_AT = 2 * OSIER_MOST_RANKS * OSIER_SHORT_BLOCKS * OSIER_INBOX_SLOT,
       OSIER_FLAGS_AT = OSIER_LONG_AT + 2 * OSIER_MOST_RANKS * OSIER_LONG_BLOCKS * OSIER_INBOX_SLOT,
       OSIER_FLAG_BYTES = 16,
       OSIER_SHORT_BYTES = 8192 };

// Numbers go from 1 to this one; the bit above marks those of a rank that has failed.
#define OSIER_LAST_NUMBER 0x7ffffffeu
// The number of an exchange that was stopped.
#define OSIER_NO_NUMBER 0x7fffffffu
#define OSIER_FAILED 0x80000000u
// Verdicts: none, or the rank that has failed, or that combines something else, above one of
// these; in the host's word with OSIER_DONE.
#define OSIER_FAILED_RANK 0x100u
#define OSIER_OTHER_RANK 0x200u
#define OSIER_STOPPED 0x400u
#define OSIER_DONE 0x80000000u
// The host's word of a launch that runs.
#define OSIER_BEGUN 1u

// `Argument` of kernels/src/exchange.rs, field by field.
struct osier_exchange {
    osier_u8* inboxes[OSIER_MOST_RANKS];
    const osier_u8* send;
    osier_u8* recv;
    osier_u64 bytes;
    osier_u32* counts;         // exchanges so far, blocks of this one that are done, verdict
    const osier_u32* stop;     // a bit for each rank that is gone
    osier_u32* done;           // for the host
    osier_u8* multicast;       // all inboxes at once; 0 without multicast
    osier_u8 ranks[OSIER_MOST_RANKS];  // by leaf of a full tree
    osier_u32 present;         // leaves that have a rank
    osier_u32 rank;
    osier_u32 size;
    osier_u32 operation;
    osier_u32 failed;
    osier_u32 signature;
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

// Stores to all inboxes at once: two words of 8 bytes, each of them whole.
static __device__ __forceinline__ void osier_put_to_all(osier_u8* at, osier_pair pair) {
#ifdef __CUDA_ARCH__
    asm volatile("multimem.st.relaxed.sys.global.u64 [%0], %1;" ::"l"(at), "l"(pair.low) : "memory");
    asm volatile("multimem.st.relaxed.sys.global.u64 [%0], %1;" ::"l"(at + 8), "l"(pair.high) : "memory");
#else
    osier_multimem_store(at, pair.low);
    osier_multimem_store(at + 8, pair.high);
#endif
}

// The same in one store, of which only 4 bytes are whole.
static __device__ __forceinline__ void osier_put_wide_to_all(osier_u8* at, osier_pair pair) {
    const osier_u32 words[4] = {(osier_u32)pair.low, (osier_u32)(pair.low >> 32), (osier_u32)pair.high, (osier_u32)(pair.high >> 32)};
#ifdef __CUDA_ARCH__
    asm volatile("multimem.st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
#else
    osier_multimem_store(at, words);
#endif
}

// Orders accesses by one address of some memory with those by another.
static __device__ __forceinline__ void osier_fence_aliases() {
#ifdef __CUDA_ARCH__
    asm volatile("fence.proxy.alias;" ::: "memory");
#else
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
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

// A flag: a number, and a signature above it.
static __device__ __forceinline__ void osier_raise(osier_u8* at, osier_u64 flag) {
#ifdef __CUDA_ARCH__
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(at), "l"(flag) : "memory");
#else
    __atomic_store_n((osier_u64*)at, flag, __ATOMIC_RELEASE);
#endif
}

static __device__ __forceinline__ osier_u64 osier_flag(const osier_u8* at) {
    osier_u64 flag;
#ifdef __CUDA_ARCH__
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(flag) : "l"(at) : "memory");
#else
    flag = __atomic_load_n((const osier_u64*)at, __ATOMIC_ACQUIRE);
#endif
    return flag;
}

static __device__ __forceinline__ osier_u32 osier_look(const osier_u32* at) {
    osier_u32 word;
#ifdef __CUDA_ARCH__
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(word) : "l"(at) : "memory");
#else
    word = __atomic_load_n(at, __ATOMIC_ACQUIRE);
#endif
    return word;
}

static __device__ __forceinline__ osier_u32 osier_short_at(osier_u32 parity, osier_u32 from) {
    return ((parity * OSIER_MOST_RANKS + from) * OSIER_SHORT_BLOCKS + blockIdx.x) * OSIER_INBOX_SLOT + 16 * threadIdx.x;
}

static __device__ __forceinline__ osier_u32 osier_long_at(osier_u32 parity, osier_u32 from) {
    return OSIER_LONG_AT + ((parity * OSIER_MOST_RANKS + from) * OSIER_LONG_BLOCKS + blockIdx.x) * OSIER_INBOX_SLOT + 16 * threadIdx.x;
}

static __device__ __forceinline__ osier_u32 osier_flag_at(osier_u32 parity, osier_u32 from, osier_u32 block) {
    return OSIER_FLAGS_AT + ((parity * OSIER_MOST_RANKS + from) * OSIER_LONG_BLOCKS + block) * OSIER_FLAG_BYTES;
}

// One thread's exchange: which it is, and how its waits end without data.
struct osier_turn {
    osier_u32 number;
    osier_u32 verdict;
    osier_u32 looks;
    osier_u32 gone;  // ranks that store no more, as the host said before the last look

    __device__ __forceinline__ osier_u32 parity() const { return number & 1; }
    // What a flag says; whether it is this exchange's.
    __device__ __forceinline__ bool reads(const osier_exchange& plan, osier_u64 flag, osier_u32 from) {
        if (((osier_u32)flag & ~OSIER_FAILED) != number) return false;
        if (verdict) return true;
        if ((osier_u32)flag & OSIER_FAILED) verdict = OSIER_FAILED_RANK + from;
        else if ((osier_u32)(flag >> 32) != plan.signature && !plan.failed) verdict = OSIER_OTHER_RANK + from;
        return true;
    }
    // After a look that found nothing: whether to look at what is far, too, the host's word
    // among it.
    __device__ __forceinline__ bool looks_afar() {
#ifdef __CUDA_ARCH__
        if ((++looks & 255) != 0) return false;
        if (looks > (1u << 14)) __nanosleep(200);
#else
        __nanosleep(100);
#endif
        return true;
    }
    __device__ __forceinline__ bool is_gone(osier_u32 from) const { return gone >> from & 1; }
    // After a look that found nothing: whether it was the last. There is one more once a rank
    // is gone, for what it has stored before.
    __device__ __forceinline__ bool is_over(const osier_exchange& plan, osier_u32 from) {
        if (!is_gone(from)) {
            gone |= osier_look(plan.stop);
            if (*(volatile osier_u32*)(plan.counts + 2) == OSIER_STOPPED) gone = ~0u;
            return false;
        }
        verdict = OSIER_STOPPED;
        atomicMax(plan.counts + 2, OSIER_STOPPED);
        return true;
    }
    // Whether to look again for what a rank writes.
    __device__ __forceinline__ bool goes_on(const osier_exchange& plan, osier_u32 from) {
        if (verdict) return false;
        if (!is_gone(from) && !looks_afar()) return true;
        reads(plan, osier_flag(plan.inboxes[plan.rank] + osier_flag_at(parity(), from, 0)), from);
        return !verdict && !is_over(plan, from);
    }
    // Sends the flag of a block to a rank, behind what its threads have written.
    __device__ __forceinline__ void raise(const osier_exchange& plan, osier_u32 to) const {
        const osier_u64 flag = (osier_u64)plan.signature << 32 | number | (plan.failed ? OSIER_FAILED : 0);
        osier_raise(plan.inboxes[to] + osier_flag_at(parity(), plan.rank, blockIdx.x), flag);
    }
    // Waits for this block's flag of a rank. Block 0 does so whatever the verdict is.
    __device__ __forceinline__ void await(const osier_exchange& plan, osier_u32 from) {
        const osier_u8* const at = plan.inboxes[plan.rank] + osier_flag_at(parity(), from, blockIdx.x);
        while (!reads(plan, osier_flag(at), from)) {
            if (blockIdx.x != 0 ? !goes_on(plan, from) : (is_gone(from) || looks_afar()) && is_over(plan, from)) break;
        }
    }
    // A thread for each other rank; a call for each, as addresses of arguments are constants.
    __device__ __forceinline__ void raise_all(const osier_exchange& plan) const {
#pragma unroll
        for (osier_u32 to = 0; to < OSIER_MOST_RANKS; to++) {
            if (threadIdx.x == to && to < plan.size && to != plan.rank) raise(plan, to);
        }
    }
};

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

template <class O, bool MULTICAST> static __device__ __forceinline__ void osier_exchange_short(const osier_exchange& plan, osier_turn& turn) {
    // All of block 0 say what this rank combines, as soon as they can.
    if (blockIdx.x == 0) turn.raise_all(plan);
    const osier_u64 at = ((osier_u64)blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (at < plan.bytes) {
        const osier_u64 own = osier_read_word(plan.send, at, plan.bytes);
        const osier_u64 mark = (osier_u64)turn.number << 32;
        const osier_pair both = {(own & 0xffffffffu) | mark, own >> 32 | mark};
        if (MULTICAST) osier_put_to_all(plan.multicast + osier_short_at(turn.parity(), plan.rank), both);
#pragma unroll
        for (osier_u32 to = 0; to < OSIER_MOST_RANKS && !MULTICAST; to++) {
            if (to < plan.size && to != plan.rank) osier_put(plan.inboxes[to] + osier_short_at(turn.parity(), plan.rank), both);
        }
        const osier_u8* const inbox = plan.inboxes[plan.rank];
        osier_u64 words[OSIER_MOST_RANKS];
#pragma unroll
        for (int leaf = 0; leaf < OSIER_MOST_RANKS; leaf++) {
            words[leaf] = own;
            const osier_u32 from = plan.ranks[leaf];
            if (!(plan.present >> leaf & 1) || from == plan.rank) continue;
            const osier_u8* const place = inbox + osier_short_at(turn.parity(), from);
            osier_pair got = osier_take(place);
            while ((osier_u32)(got.low >> 32) != turn.number || (osier_u32)(got.high >> 32) != turn.number) {
                if (!turn.goes_on(plan, from)) break;
                got = osier_take(place);
            }
            words[leaf] = (got.low & 0xffffffffu) | got.high << 32;
        }
        const osier_u64 result = osier_tree<O>(plan.operation, plan.present, words);
        if (!turn.verdict) osier_write_word(plan.recv, at, plan.bytes, result);
    }
    if (blockIdx.x == 0 && threadIdx.x < plan.size && threadIdx.x != plan.rank) turn.await(plan, threadIdx.x);
}

template <class O, bool MULTICAST> static __device__ __forceinline__ void osier_exchange_long(const osier_exchange& plan, osier_turn& turn) {
    const osier_u64 at = ((osier_u64)blockIdx.x * blockDim.x + threadIdx.x) * 16;
    osier_pair own = {0, 0};
    if (at < plan.bytes) {
        own.low = osier_read_word(plan.send, at, plan.bytes);
        own.high = osier_read_word(plan.send, at + 8, plan.bytes);
        if (MULTICAST) osier_put_wide_to_all(plan.multicast + osier_long_at(turn.parity(), plan.rank), own);
#pragma unroll
        for (osier_u32 to = 0; to < OSIER_MOST_RANKS && !MULTICAST; to++) {
            if (to < plan.size && to != plan.rank) osier_put(plan.inboxes[to] + osier_long_at(turn.parity(), plan.rank), own);
        }
    }
    if (MULTICAST) osier_fence_aliases();
    __threadfence_system();
    __syncthreads();
    turn.raise_all(plan);
    const osier_u8* const inbox = plan.inboxes[plan.rank];
    for (osier_u32 from = 0; from < plan.size; from++) {
        if (from != plan.rank) turn.await(plan, from);
    }
    if (at >= plan.bytes || turn.verdict) return;
    osier_u64 low[OSIER_MOST_RANKS], high[OSIER_MOST_RANKS];
#pragma unroll
    for (int leaf = 0; leaf < OSIER_MOST_RANKS; leaf++) {
        low[leaf] = own.low;
        high[leaf] = own.high;
        const osier_u32 from = plan.ranks[leaf];
        if (!(plan.present >> leaf & 1) || from == plan.rank) continue;
        const osier_pair got = osier_take(inbox + osier_long_at(turn.parity(), from));
        low[leaf] = got.low;
        high[leaf] = got.high;
    }
    const osier_u64 first = osier_tree<O>(plan.operation, plan.present, low);
    osier_write_word(plan.recv, at, plan.bytes, first);
    if (at + 8 < plan.bytes) osier_write_word(plan.recv, at + 8, plan.bytes, osier_tree<O>(plan.operation, plan.present, high));
}

// Numbers begin anew one day, and a word that nobody has written since must not hold the one
// that is waited for: now and then, two exchanges running, those of both parities are cleared,
// by one thread of the last block. Others write there no sooner than this rank has begun the next exchange.
static __device__ __forceinline__ void osier_clear(const osier_exchange& plan, osier_u32 number) {
    if ((number & 0xfffff) > 1) return;
    const osier_pair nothing = {0, 0};
    osier_u8* const inbox = plan.inboxes[plan.rank];
    const osier_u32 words = OSIER_MOST_RANKS * OSIER_SHORT_BLOCKS * OSIER_INBOX_SLOT;
    const osier_u32 flags = OSIER_MOST_RANKS * OSIER_LONG_BLOCKS * OSIER_FLAG_BYTES;
    for (osier_u32 at = 0; at < words; at += 16) osier_put(inbox + (number & 1) * words + at, nothing);
    for (osier_u32 at = 0; at < flags; at += 16) osier_put(inbox + OSIER_FLAGS_AT + (number & 1) * flags + at, nothing);
}

template <class O, bool MULTICAST = false> static __device__ __forceinline__ void osier_exchange_all(const osier_exchange& plan) {
    const osier_u32 before = *(volatile osier_u32*)plan.counts;
    osier_turn turn = {before >= OSIER_LAST_NUMBER ? 1 : before + 1, 0, 0, 0};
    if (blockIdx.x == 0 && threadIdx.x == 0) *(volatile osier_u32*)plan.done = OSIER_BEGUN;
    if (before == OSIER_NO_NUMBER) {
        turn.verdict = OSIER_STOPPED;
    } else if (plan.failed) {
        turn.raise_all(plan);
        if (threadIdx.x < plan.size && threadIdx.x != plan.rank) turn.await(plan, threadIdx.x);
    } else if (plan.bytes <= OSIER_SHORT_BYTES) {
        osier_exchange_short<O, MULTICAST>(plan, turn);
    } else {
        osier_exchange_long<O, MULTICAST>(plan, turn);
    }
    if (turn.verdict) atomicMax(plan.counts + 2, turn.verdict);
    // What each thread has written, then its block's end, then the word.
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x != 0 || atomicAdd(plan.counts + 1, 1u) + 1 != gridDim.x) return;
    __threadfence_system();
    const osier_u32 verdict = atomicExch(plan.counts + 2, 0u);
    if (verdict != OSIER_STOPPED) osier_clear(plan, turn.number);
    plan.counts[1] = 0;
    plan.counts[0] = verdict == OSIER_STOPPED ? OSIER_NO_NUMBER : turn.number;
    osier_release((osier_u8*)plan.done, OSIER_DONE | verdict);
}
