// What all kernels share: words, divisors, ranges of packed bytes.
//
// Plain C++17 with the built-in variables of CUDA only, so that a host compiler
// takes it behind a header that declares these. The structures are those of
// kernels/src/plan/arguments.rs, field by field.
#pragma once

typedef unsigned char osier_u8;
typedef unsigned short osier_u16;
typedef unsigned int osier_u32;
typedef unsigned long long osier_u64;
typedef int osier_i32;
typedef long long osier_i64;

// One access of W bytes.
template <int W> struct osier_word;
template <> struct osier_word<1> { typedef osier_u8 type; };
template <> struct osier_word<2> { typedef osier_u16 type; };
template <> struct osier_word<4> { typedef osier_u32 type; };
template <> struct osier_word<8> { typedef osier_u64 type; };
struct alignas(16) osier_pair { osier_u64 low, high; };
template <> struct osier_word<16> { typedef osier_pair type; };

// Division by a number known at launch, as a multiplication: Granlund and Montgomery,
// Division by invariant integers using multiplication, PLDI 1994, figure 4.1. Numbers
// are below 2^31, or below 2^63.
struct osier_divisor {
    osier_u64 value;
    osier_u64 wide_magic;
    osier_u32 magic;
    osier_u32 shift;
    osier_u32 wide_shift;
    osier_u32 unused;
};

static __device__ __forceinline__ osier_u32 osier_quotient(const osier_divisor& by, osier_u32 n) {
    return ((osier_u32)(((osier_u64)n * by.magic) >> 32) + n) >> by.shift;
}

static __device__ __forceinline__ osier_u64 osier_quotient(const osier_divisor& by, osier_u64 n) {
    return (__umul64hi(n, by.wide_magic) + n) >> by.wide_shift;
}

// The same, where only the launch knows how wide numbers are.
static __device__ __forceinline__ osier_u64 osier_divide(const osier_divisor& by, osier_u64 n, bool wide) {
    return wide ? osier_quotient(by, n) : (osier_u64)osier_quotient(by, (osier_u32)n);
}

// The same address and number, which the compiler is not to take apart: it would add up
// anew, for each of several words, what they share.
static __device__ __forceinline__ osier_u8* osier_kept(osier_u8* at) {
#ifdef __CUDA_ARCH__
    asm("" : "+l"(at));
    __builtin_assume(__isGlobal(at));
#endif
    return at;
}

static __device__ __forceinline__ osier_u32 osier_kept(osier_u32 number) {
#ifdef __CUDA_ARCH__
    asm("" : "+r"(number));
#endif
    return number;
}

// A number that others acquire, behind all that this thread has written or seen.
static __device__ __forceinline__ void osier_release(osier_u8* at, osier_u32 number) {
#ifdef __CUDA_ARCH__
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(number) : "memory");
#else
    __atomic_store_n((osier_u32*)at, number, __ATOMIC_RELEASE);
#endif
}

// The word in pinned memory that a kernel raises with its last store, or none. Whoever reads
// the number there, on the host or on any device, finds all that the kernel has written. Its
// grid has one block: blocks know nothing of each other.
struct osier_last {
    osier_u32* word;
    osier_u32 number;
    osier_u32 unused;
};

// Called by all threads, as the last thing: the barrier collects what they have written, and
// the release is cumulative (PTX ISA 8.0, memory consistency model, causality order).
static __device__ __forceinline__ void osier_tell(const osier_last& last) {
    if (!last.word) return;
    __syncthreads();
    if (threadIdx.x == 0) osier_release((osier_u8*)last.word, last.number);
}

// A range of packed bytes, and both memories.
struct osier_range {
    osier_u8* layout;  // origin of the layout, base included
    osier_u8* packed;  // where packed byte `start` is
    osier_u64 start;
    osier_u64 end;
    osier_u32 wide;    // word numbers need 64 bits
    osier_u32 chunk;   // words that a warp takes at once; kernels of strides have no use for it
};

// Four words of a thread, a thread block apart, as far as there are any: all are read before
// the first is written. Where all are there no word is asked for, so that the loads are
// under way together.
template <int W, bool PACK, bool ALL, class I, class N>
static __device__ __forceinline__ void osier_move_items(const osier_range& range, const N& nest, I at, I end) {
    typedef typename osier_word<W>::type word;
    const int ITEMS = 4;
    const I apart = (I)blockDim.x;
    osier_u8* const packed = range.packed - range.start;
    word moved[ITEMS];
    osier_u8* there[ITEMS];
#pragma unroll
    for (int k = 0; k < ITEMS; k++) {
        const I number = at + (I)k * apart;
        if (ALL || number < end) {
            osier_u8* const inside = range.layout + nest.at(number);
            osier_u8* const outside = packed + (osier_u64)number * W;
            moved[k] = *(const word*)(PACK ? inside : outside);
            there[k] = PACK ? outside : inside;
        }
    }
#pragma unroll
    for (int k = 0; k < ITEMS; k++) {
        if (ALL || at + (I)k * apart < end) *(word*)there[k] = moved[k];
    }
}

// Moves all words of a range, then its ragged ends byte by byte. `nest.at(word)`
// is the offset of a word in the layout; both memories suit W. Four words of a
// thread are under way at a time, a thread block apart, so that each of the four
// accesses of a warp is one run on the packed side.
template <int W, bool PACK, class I, class N>
static __device__ __forceinline__ void osier_move(const osier_range& range, const N& nest) {
    const int ITEMS = 4;
    const osier_u64 first = (range.start + (W - 1)) / W;
    const osier_u64 last = range.end / W;
    osier_u8* const packed = range.packed - range.start;
    if (first < last) {
        const I end = (I)last;
        const I apart = (I)blockDim.x;
        const I step = (I)gridDim.x * apart * ITEMS;
        I at = (I)first + (I)blockIdx.x * apart * ITEMS + (I)threadIdx.x;
        for (; at < end && end - at > (ITEMS - 1) * apart; at += step) osier_move_items<W, PACK, true>(range, nest, at, end);
        if (at < end) osier_move_items<W, PACK, false>(range, nest, at, end);
    }
    // Fewer than W bytes before the first word, fewer than W behind the last.
    if (W > 1 && blockIdx.x == 0 && threadIdx.x < 2 * W) {
        const bool behind = threadIdx.x >= W;
        const osier_u64 from = first * W, until = last * W > from ? last * W : from;
        const osier_u64 byte = behind ? until + (threadIdx.x - W) : range.start + threadIdx.x;
        const osier_u64 stop = behind ? range.end : (from < range.end ? from : range.end);
        if (byte < stop) {
            osier_u8* const inside = range.layout + nest.at((I)(byte / W)) + byte % W;
            if (PACK) packed[byte] = *inside; else *inside = packed[byte];
        }
    }
}
