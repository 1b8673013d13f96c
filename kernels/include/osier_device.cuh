// One-sided communication from kernels: memory of a symmetric heap on devices, used by kernels of
// all of its ranks while they run.
//
// The host makes an `osier_team` (`SymmetricHeap::team` in Rust) and gives it to a kernel as an
// argument. Addresses are those of the own rank's heap: the same element of another rank is named
// by the own address and the rank.
//
//     extern "C" __global__ void shift(osier_team team, double* field, osier_word* arrived, osier_word round) {
//         const unsigned next = (team.rank + 1) % team.size;
//         osier_put_signal_block(team, field + 1024, field, 1024 * sizeof(double), arrived, round, next);
//         if (!osier_wait_block(team, arrived, OSIER_AT_LEAST, round)) return;   // a rank has died
//         ...                                                   // field + 1024 has what came
//     }
//
// What a call writes is there for who acquires the signal that is raised behind it: releases and
// acquires are of the whole system. Functions with `_block` are called by all threads of a block,
// with `_warp` by all of a warp, others by one thread. Blocks know nothing of each other: what
// several blocks have written is told once they have met at a barrier of the grid's.
//
// A kernel that waits for another one has to run beside it: no more blocks than the device runs at once
// wait, and the kernels of all ranks are launched on devices, or streams, of their own. Where ranks are
// elsewhere, the device has room for one more block: what they signal is written by a kernel.
//
// Ranks elsewhere are those whose heaps this device does not reach. What is for them is posted in a ring
// in memory of the host, from which a thread takes it: a put has been made when its call returns, a
// signal behind what its block has posted before. A block waits while the ring is full.
//
// Waits end with false, and `osier_status` tells why, when a rank of the team has died, the host
// has ended the team, or an access to a rank elsewhere has failed; what such a wait was for is not
// there, nor what is posted behind.
//
// Plain C++11 with CUDA's built-in variables. Needs sm_70.
//
// Sources: PTX ISA 8.0, memory consistency model (release and acquire at system scope); NVSHMEM
// documentation 2.10 and OpenSHMEM 1.5 (what such calls are named and promise); D. Hensgen, R. Finkel,
// U. Manber, "Two Algorithms for Barrier Synchronization", IJPP 1988 (dissemination).
#pragma once

typedef unsigned long long osier_word;

// Words of the barrier that each heap has for a team: one for each round.
enum { OSIER_BARRIER_WORDS = 32 };

// Status words: why waits end.
enum osier_team_status { OSIER_RUNS = 0, OSIER_RANK_DIED = 1, OSIER_TEAM_ENDED = 2, OSIER_ACCESS_FAILED = 3 };

// What is posted for a rank elsewhere.
enum osier_posted {
    OSIER_PUT,
    OSIER_PUT_SIGNAL_SET,
    OSIER_PUT_SIGNAL_ADD,
    OSIER_GET,
    OSIER_SIGNAL_SET,
    OSIER_SIGNAL_ADD,
    OSIER_SIGNAL_FETCH_ADD
};

// A place of the ring, `Slot` of src/one_sided/ring.rs. The kernel writes the first line, the host the
// second; the kernel gives a place back whose `before` it has read.
struct osier_slot {
    osier_word turn;    // ticket + 1: what is below is there
    osier_word what;    // osier_posted, and the rank above 32 bits
    osier_word local;   // address of this device
    osier_word remote;  // byte of the heap
    osier_word bytes;
    osier_word word;    // byte of the heap: the signal
    osier_word value;
    osier_word unused;
    osier_word done;    // ticket + 1: it was made
    osier_word before;  // of an OSIER_SIGNAL_FETCH_ADD: the word
    osier_word free;    // ticket + 1: the next may have the place
    osier_word unused_too[5];
};

// `Team` of src/one_sided/team.rs, field by field.
struct osier_team {
    unsigned char *const *heaps;  // by rank: where its heap lies for this device; null: elsewhere
    osier_word *barrier;          // words of the own heap that count arrivals, OSIER_BARRIER_WORDS
    osier_word *epoch;            // barriers so far, of this rank alone
    const unsigned *status;       // of the host: osier_team_status
    unsigned long long bytes;     // of each heap
    osier_slot *ring;             // of the host: what is for ranks elsewhere; or null
    osier_word *tickets;          // posted so far
    unsigned slots;               // of the ring
    unsigned rank;
    unsigned size;
    unsigned unused;
};

enum osier_condition { OSIER_EQUAL, OSIER_NOT_EQUAL, OSIER_AT_LEAST, OSIER_MORE, OSIER_AT_MOST, OSIER_LESS };

// --- words ------------------------------------------------------------------------------------

static __device__ __forceinline__ osier_word osier_load_acquire(const osier_word *at) {
    osier_word word;
#ifdef __CUDA_ARCH__
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(word) : "l"(at) : "memory");
#else
    word = __atomic_load_n(at, __ATOMIC_ACQUIRE);
#endif
    return word;
}

static __device__ __forceinline__ void osier_store_release(osier_word *at, osier_word word) {
#ifdef __CUDA_ARCH__
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(at), "l"(word) : "memory");
#else
    __atomic_store_n(at, word, __ATOMIC_RELEASE);
#endif
}

static __device__ __forceinline__ osier_word osier_add_release(osier_word *at, osier_word word) {
    osier_word before;
#ifdef __CUDA_ARCH__
    asm volatile("atom.acq_rel.sys.global.add.u64 %0, [%1], %2;" : "=l"(before) : "l"(at), "l"(word) : "memory");
#else
    before = __atomic_fetch_add(at, word, __ATOMIC_ACQ_REL);
#endif
    return before;
}

// Why waits end, or OSIER_RUNS.
static __device__ __forceinline__ unsigned osier_status(const osier_team &team) {
    unsigned status;
#ifdef __CUDA_ARCH__
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(status) : "l"(team.status) : "memory");
#else
    status = __atomic_load_n(team.status, __ATOMIC_RELAXED);
#endif
    return status;
}

// A wait spins for this number of polls before it sleeps between polls, and looks at the status once
// in this number: the status lies in memory of the host, so that a look crosses the bus.
enum { OSIER_POLLS_PER_LOOK = 32 };

// A poll has found nothing; whether the wait goes on.
static __device__ __forceinline__ bool osier_waits_on(const osier_team &team, unsigned &polls) {
    polls++;
    if (polls >= OSIER_POLLS_PER_LOOK) __nanosleep(100);
#ifndef __CUDA_ARCH__
    else __nanosleep(0);  // others run meanwhile
#endif
    return polls % OSIER_POLLS_PER_LOOK != 0 || osier_status(team) == OSIER_RUNS;
}

// --- addresses --------------------------------------------------------------------------------

// Whether this device reaches the heap of a rank.
static __device__ __forceinline__ bool osier_is_near(const osier_team &team, unsigned rank) {
    return team.heaps[rank] != nullptr;
}

// Byte of the heap of an own element.
static __device__ __forceinline__ osier_word osier_offset(const osier_team &team, const void *own) {
    return (osier_word)((const unsigned char *)own - team.heaps[team.rank]);
}

// The same element of another rank, which loads, stores and atomics of the system may use; null: the
// rank is elsewhere.
template <class T> static __device__ __forceinline__ T *osier_peer(const osier_team &team, T *own, unsigned rank) {
    return osier_is_near(team, rank) ? (T *)(team.heaps[rank] + osier_offset(team, own)) : nullptr;
}

// --- ranks elsewhere --------------------------------------------------------------------------

// What no ticket is: nothing was posted, because waits have ended.
enum : osier_word { OSIER_NO_TICKET = ~0ull };

// Posts something, behind all that this thread has written or seen; the ticket. One thread calls.
static __device__ __forceinline__ osier_word osier_post(
    const osier_team &team, osier_posted what, unsigned rank, const void *local, const void *remote,
    unsigned long long bytes, const osier_word *word, osier_word value
) {
    const osier_word ticket = osier_add_release(team.tickets, 1);
    osier_slot *const slot = team.ring + ticket % team.slots;
    // The one before, which had this place, has given it back.
    unsigned polls = 0;
    while (ticket >= team.slots && osier_load_acquire(&slot->free) + team.slots < ticket + 1) {
        if (!osier_waits_on(team, polls)) return OSIER_NO_TICKET;
    }
    slot->what = (osier_word)rank << 32 | (osier_word)what;
    slot->local = (osier_word)local;
    slot->remote = remote ? osier_offset(team, remote) : 0;
    slot->bytes = bytes;
    slot->word = word ? osier_offset(team, word) : 0;
    slot->value = value;
    osier_store_release(&slot->turn, ticket + 1);
    return ticket;
}

// Waits until what was posted was made. False: waits have ended.
static __device__ __forceinline__ bool osier_await(const osier_team &team, osier_word ticket) {
    if (ticket == OSIER_NO_TICKET) return false;
    const osier_slot *const slot = team.ring + ticket % team.slots;
    unsigned polls = 0;
    while (osier_load_acquire(&slot->done) < ticket + 1) {
        if (!osier_waits_on(team, polls)) return false;
    }
    return true;
}

// --- copies -----------------------------------------------------------------------------------

template <class W> static __device__ __forceinline__ void osier_copy_words(
    unsigned char *to, const unsigned char *from, unsigned long long bytes, unsigned lane, unsigned lanes
) {
    const unsigned long long words = bytes / sizeof(W);
    for (unsigned long long i = lane; i < words; i += lanes) ((W *)to)[i] = ((const W *)from)[i];
    for (unsigned long long i = words * sizeof(W) + lane; i < bytes; i += lanes) to[i] = from[i];
}

// Copies by `lanes` threads, of which this is one: by words as wide as both sides suit.
static __device__ __forceinline__ void osier_copy_lanes(
    void *to, const void *from, unsigned long long bytes, unsigned lane, unsigned lanes
) {
    unsigned char *const target = (unsigned char *)to;
    const unsigned char *const source = (const unsigned char *)from;
    const unsigned long long odd = (unsigned long long)target | (unsigned long long)source;
    if (odd % 16 == 0) osier_copy_words<uint4>(target, source, bytes, lane, lanes);
    else if (odd % 8 == 0) osier_copy_words<osier_word>(target, source, bytes, lane, lanes);
    else if (odd % 4 == 0) osier_copy_words<unsigned>(target, source, bytes, lane, lanes);
    else osier_copy_words<unsigned char>(target, source, bytes, lane, lanes);
}

static __device__ __forceinline__ unsigned osier_thread() {
    return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
}

static __device__ __forceinline__ unsigned osier_threads() { return blockDim.x * blockDim.y * blockDim.z; }

// Posts something for a rank elsewhere, and waits until it was made, by a block or a warp.
static __device__ __forceinline__ void osier_post_block(
    const osier_team &team, osier_posted what, unsigned rank, const void *local, const void *remote,
    unsigned long long bytes, const osier_word *word, osier_word value
) {
    __syncthreads();
    if (osier_thread() == 0) osier_await(team, osier_post(team, what, rank, local, remote, bytes, word, value));
    __syncthreads();
}

static __device__ __forceinline__ void osier_post_warp(
    const osier_team &team, osier_posted what, unsigned rank, const void *local, const void *remote,
    unsigned long long bytes
) {
    __syncwarp();
    if (osier_thread() % 32 == 0) osier_await(team, osier_post(team, what, rank, local, remote, bytes, nullptr, 0));
    __syncwarp();
}

// Writes `bytes` bytes at `from`, any memory of the device, to `to` of another rank.
static __device__ __forceinline__ void osier_put_block(
    const osier_team &team, void *to, const void *from, unsigned long long bytes, unsigned rank
) {
    unsigned char *const there = osier_peer(team, (unsigned char *)to, rank);
    if (!there) return osier_post_block(team, OSIER_PUT, rank, from, to, bytes, nullptr, 0);
    osier_copy_lanes(there, from, bytes, osier_thread(), osier_threads());
}

static __device__ __forceinline__ void osier_put_warp(
    const osier_team &team, void *to, const void *from, unsigned long long bytes, unsigned rank
) {
    unsigned char *const there = osier_peer(team, (unsigned char *)to, rank);
    if (!there) return osier_post_warp(team, OSIER_PUT, rank, from, to, bytes);
    osier_copy_lanes(there, from, bytes, osier_thread() % 32, 32);
}

// Reads `bytes` bytes at `from` of another rank to `to`, any memory of the device. They are there for
// the thread that has read them; for others of its block or warp behind their barrier.
static __device__ __forceinline__ void osier_get_block(
    const osier_team &team, void *to, const void *from, unsigned long long bytes, unsigned rank
) {
    const unsigned char *const there = osier_peer(team, (const unsigned char *)from, rank);
    if (!there) return osier_post_block(team, OSIER_GET, rank, to, from, bytes, nullptr, 0);
    osier_copy_lanes(to, there, bytes, osier_thread(), osier_threads());
}

static __device__ __forceinline__ void osier_get_warp(
    const osier_team &team, void *to, const void *from, unsigned long long bytes, unsigned rank
) {
    const unsigned char *const there = osier_peer(team, (const unsigned char *)from, rank);
    if (!there) return osier_post_warp(team, OSIER_GET, rank, to, from, bytes);
    osier_copy_lanes(to, there, bytes, osier_thread() % 32, 32);
}

// --- signals ----------------------------------------------------------------------------------

// Sets a word of another rank, behind all that this thread has written or seen.
static __device__ __forceinline__ void osier_signal_set(const osier_team &team, osier_word *word, osier_word value, unsigned rank) {
    osier_word *const there = osier_peer(team, word, rank);
    if (there) osier_store_release(there, value);
    else osier_post(team, OSIER_SIGNAL_SET, rank, nullptr, nullptr, 0, word, value);
}

// Adds to one; its value before, or 0 where waits have ended.
static __device__ __forceinline__ osier_word osier_signal_add(const osier_team &team, osier_word *word, osier_word value, unsigned rank) {
    osier_word *const there = osier_peer(team, word, rank);
    if (there) return osier_add_release(there, value);
    const osier_word ticket = osier_post(team, OSIER_SIGNAL_FETCH_ADD, rank, nullptr, nullptr, 0, word, value);
    if (!osier_await(team, ticket)) return 0;
    osier_slot *const slot = team.ring + ticket % team.slots;
    const osier_word before = slot->before;
    osier_store_release(&slot->free, ticket + 1);
    return before;
}

// Writes bytes, then raises the signal.
static __device__ __forceinline__ void osier_put_raise_block(
    const osier_team &team, void *to, const void *from, unsigned long long bytes, osier_word *word,
    osier_word value, unsigned rank, bool adds
) {
    if (!osier_is_near(team, rank)) {
        const osier_posted what = adds ? OSIER_PUT_SIGNAL_ADD : OSIER_PUT_SIGNAL_SET;
        return osier_post_block(team, what, rank, from, to, bytes, word, value);
    }
    osier_put_block(team, to, from, bytes, rank);
    __syncthreads();
    if (osier_thread() != 0) return;
    if (adds) osier_signal_add(team, word, value, rank);
    else osier_signal_set(team, word, value, rank);
}

// Writes bytes, then sets a word of the same rank: who acquires it finds the bytes, and all that this
// block has written before.
static __device__ __forceinline__ void osier_put_signal_block(
    const osier_team &team, void *to, const void *from, unsigned long long bytes, osier_word *word,
    osier_word value, unsigned rank
) {
    osier_put_raise_block(team, to, from, bytes, word, value, rank, false);
}

// The same, but adds to the word.
static __device__ __forceinline__ void osier_put_signal_add_block(
    const osier_team &team, void *to, const void *from, unsigned long long bytes, osier_word *word,
    osier_word value, unsigned rank
) {
    osier_put_raise_block(team, to, from, bytes, word, value, rank, true);
}

static __device__ __forceinline__ bool osier_holds(osier_word word, osier_condition condition, osier_word value) {
    switch (condition) {
    case OSIER_EQUAL: return word == value;
    case OSIER_NOT_EQUAL: return word != value;
    case OSIER_AT_LEAST: return word >= value;
    case OSIER_MORE: return word > value;
    case OSIER_AT_MOST: return word <= value;
    default: return word < value;
    }
}

// Waits until a word of the own rank is as wanted; acquires it. False: the wait was ended.
static __device__ __forceinline__ bool osier_wait(
    const osier_team &team, const osier_word *word, osier_condition condition, osier_word value
) {
    unsigned polls = 0;
    while (!osier_holds(osier_load_acquire(word), condition, value)) {
        // One more look: a rank may leave when its kernel has ended.
        if (!osier_waits_on(team, polls)) return osier_holds(osier_load_acquire(word), condition, value);
    }
    return true;
}

// The same for all threads of a block: one waits, and the others behind it.
static __device__ __forceinline__ bool osier_wait_block(
    const osier_team &team, const osier_word *word, osier_condition condition, osier_word value
) {
    bool held = true;
    if (osier_thread() == 0) held = osier_wait(team, word, condition, value);
    return __syncthreads_and(held) != 0;
}

// --- blocks -----------------------------------------------------------------------------------

// All blocks of a grid of this rank meet, of which no more may be launched than run at once. `arrived` is a
// word of the device, zero before the first kernel that uses it. What blocks have written before is there
// behind it for all of them. False: the wait was ended.
static __device__ __forceinline__ bool osier_grid_barrier(const osier_team &team, osier_word *arrived) {
    __syncthreads();
    bool met = true;
    if (osier_thread() == 0) {
        const osier_word blocks = (osier_word)gridDim.x * gridDim.y * gridDim.z;
        const osier_word before = osier_add_release(arrived, 1);
        met = osier_wait(team, arrived, OSIER_AT_LEAST, (before / blocks + 1) * blocks);
    }
    return __syncthreads_and(met) != 0;
}

// --- barrier ----------------------------------------------------------------------------------

// All ranks of the team meet; one block of a rank calls. What blocks have written before is there behind
// it for all of their readers. False: the wait was ended.
static __device__ __forceinline__ bool osier_barrier_block(const osier_team &team) {
    __syncthreads();
    bool met = true;
    if (osier_thread() == 0) {
        const osier_word epoch = ++*team.epoch;
        unsigned round = 0;
        for (unsigned apart = 1; met && apart < team.size; apart *= 2, round++) {
            const unsigned next = (team.rank + apart) % team.size;
            if (osier_is_near(team, next)) osier_signal_add(team, team.barrier + round, 1, next);
            else osier_post(team, OSIER_SIGNAL_ADD, next, nullptr, nullptr, 0, team.barrier + round, 1);
            met = osier_wait(team, team.barrier + round, OSIER_AT_LEAST, epoch);
        }
    }
    return __syncthreads_and(met) != 0;
}
