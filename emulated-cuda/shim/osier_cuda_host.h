// CUDA C++ on the host: what a kernel of Osier may use, for the emulated driver.
//
// Included in front of every kernel source (see ../scan.rs). A kernel is called
// once per thread; the driver sets `osier_state` before each call and each
// time a thread goes on behind a barrier or a sleep. Threads of one process never run
// kernels at once, so a plain global will do.
//
// Shared variables are static: blocks run one after the other, unless a thread
// sleeps (`__nanosleep`), so a kernel that waits in memory has none. Dynamic shared
// memory is `osier_state.shared`, of each block its own; the build rewrites
// `extern __shared__ T x[];` to a pointer to it.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <utility>

struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x, y, z; };
struct alignas(8) int2 { int x, y; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) double2 { double x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) longlong2 { long long x, y; };
struct alignas(16) ulonglong2 { unsigned long long x, y; };
struct alignas(4) uchar4 { unsigned char x, y, z, w; };
struct alignas(4) ushort2 { unsigned short x, y; };
struct alignas(8) ushort4 { unsigned short x, y, z, w; };
static inline int2 make_int2(int x, int y) { return {x, y}; }
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline ulonglong2 make_ulonglong2(unsigned long long x, unsigned long long y) { return {x, y}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline double2 make_double2(double x, double y) { return {x, y}; }

extern "C" {
struct osier_launch_state {
    uint3 thread, block;
    dim3 block_dim, grid_dim;
    void *shared;
    void (*barrier)(void);
    // A barrier of the threads of a warp.
    void (*warp_barrier)(void);
    // A barrier that tells how many threads of the block have said yes.
    unsigned (*vote)(int yes);
    void (*sleep)(void);
    void (*trap)(const char *what);
    // Told of each access, if there is one: address, bytes, 1 for a write.
    void (*access)(const void *address, size_t bytes, int write);
    // Told of each atomic, behind it, if `access` is there: address, what it does, its order, bytes,
    // values before and after.
    void (*atomic)(const void *address, int act, int order, size_t bytes, unsigned long long before,
                   unsigned long long after);
    // Stores `elements` elements of `element_bytes` bytes to all memory bound to a multicast address.
    void (*multimem)(void *address, const void *from, size_t element_bytes, size_t elements);
};
struct osier_kernel {
    const char *name;
    void (*call)(void **arguments);
    const size_t *argument_bytes;
    size_t arguments;
};
struct osier_kernel_library {
    unsigned version;
    struct osier_launch_state *state;
    const struct osier_kernel *kernels;
    size_t count;
    const struct osier_kernel_library *next;
};
extern __attribute__((visibility("hidden"))) struct osier_launch_state osier_state;
}

#ifdef OSIER_SCAN
#define __global__ osier_global_marker
#else
#define __global__
#endif
#define __device__
#define __host__
#define __constant__ static const
#define __shared__ static
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __grid_constant__

#define threadIdx (osier_state.thread)
#define blockIdx (osier_state.block)
#define blockDim (osier_state.block_dim)
#define gridDim (osier_state.grid_dim)
#define warpSize 32

static inline void __syncthreads() { osier_state.barrier(); }
static inline void __syncwarp() { osier_state.warp_barrier(); }
static inline int __syncthreads_count(int yes) { return (int)osier_state.vote(yes); }
static inline int __syncthreads_or(int yes) { return osier_state.vote(yes) != 0; }
static inline int __syncthreads_and(int yes) {
    const dim3 all = osier_state.block_dim;
    return osier_state.vote(yes) == all.x * all.y * all.z;
}
static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __nanosleep(unsigned) { osier_state.sleep(); }
static inline void __trap() { osier_state.trap("__trap"); }
#undef assert
#define assert(what) ((what) ? (void)0 : osier_state.trap("assertion failed: " #what))

// `multimem.st.relaxed.sys` of a number, and of a vector, whose elements are whole by themselves.
template <class T> static inline void osier_multimem_store(void *at, T value) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "no such instruction");
    osier_state.multimem(at, &value, sizeof value, 1);
}
template <class T, int N> static inline void osier_multimem_store(void *at, const T (&values)[N]) {
    static_assert(sizeof(T) == 4, "no such instruction");
    osier_state.multimem(at, values, sizeof(T), N);
}

// Atomics on integers use the processor's; on floating-point numbers a loop. They order nothing else,
// as on a device.
template <class T> static inline T atomicCAS(T *at, T expected, T value) {
    __atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}
template <class T> static inline T atomicExch(T *at, T value) {
    return __atomic_exchange_n(at, value, __ATOMIC_RELAXED);
}
template <class T, class F> static inline T osier_atomic_update(T *at, F update) {
    T before, after;
    __atomic_load(at, &before, __ATOMIC_RELAXED);
    do {
        after = update(before);
    } while (!__atomic_compare_exchange(at, &before, &after, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return before;
}
template <class T, class V> static inline T atomicAdd(T *at, V v) { return osier_atomic_update(at, [&](T b) { return (T)(b + (T)v); }); }
template <class T, class V> static inline T atomicSub(T *at, V v) { return osier_atomic_update(at, [&](T b) { return (T)(b - (T)v); }); }
template <class T, class V> static inline T atomicOr(T *at, V v) { return osier_atomic_update(at, [&](T b) { return (T)(b | (T)v); }); }
template <class T, class V> static inline T atomicAnd(T *at, V v) { return osier_atomic_update(at, [&](T b) { return (T)(b & (T)v); }); }
template <class T, class V> static inline T atomicXor(T *at, V v) { return osier_atomic_update(at, [&](T b) { return (T)(b ^ (T)v); }); }
template <class T, class V> static inline T atomicMax(T *at, V v) { return osier_atomic_update(at, [&](T b) { return b < (T)v ? (T)v : b; }); }
template <class T, class V> static inline T atomicMin(T *at, V v) { return osier_atomic_update(at, [&](T b) { return (T)v < b ? (T)v : b; }); }

template <class T> static inline T __ldg(const T *at) { return *at; }
template <class T> static inline T __ldcs(const T *at) { return *at; }
template <class T> static inline void __stcs(T *at, T value) { *at = value; }
template <class To, class From> static inline To osier_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "sizes differ");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
static inline unsigned __float_as_uint(float v) { return osier_bits<unsigned>(v); }
static inline int __float_as_int(float v) { return osier_bits<int>(v); }
static inline float __uint_as_float(unsigned v) { return osier_bits<float>(v); }
static inline float __int_as_float(int v) { return osier_bits<float>(v); }
static inline long long __double_as_longlong(double v) { return osier_bits<long long>(v); }
static inline double __longlong_as_double(long long v) { return osier_bits<double>(v); }
static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
static inline int __clz(int v) { return v ? __builtin_clz((unsigned)v) : 32; }
static inline int __clzll(long long v) { return v ? __builtin_clzll((unsigned long long)v) : 64; }
static inline int __ffs(int v) { return __builtin_ffs(v); }
static inline int __ffsll(long long v) { return __builtin_ffsll(v); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)(((unsigned long long)a * b) >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)(((unsigned __int128)a * b) >> 64);
}
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned s) {
    unsigned long long both = ((unsigned long long)b << 32) | a;
    unsigned out = 0;
    for (int i = 0; i < 4; i++) out |= (unsigned)((both >> (8 * ((s >> (4 * i)) & 7))) & 0xff) << (8 * i);
    return out;
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)((((unsigned long long)high << 32) | low) >> (shift & 31));
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)(((((unsigned long long)high << 32) | low) << (shift & 31)) >> 32);
}
template <class T> static inline T osier_min(T a, T b) { return b < a ? b : a; }
template <class T> static inline T osier_max(T a, T b) { return a < b ? b : a; }
#define OSIER_MIN_MAX(T) \
    static inline T min(T a, T b) { return osier_min(a, b); } \
    static inline T max(T a, T b) { return osier_max(a, b); }
OSIER_MIN_MAX(int)
OSIER_MIN_MAX(unsigned)
OSIER_MIN_MAX(long)
OSIER_MIN_MAX(unsigned long)
OSIER_MIN_MAX(long long)
OSIER_MIN_MAX(unsigned long long)
OSIER_MIN_MAX(float)
OSIER_MIN_MAX(double)

// One entry of the name table: sizes of the arguments, and a call that takes
// them as the driver has them, an array of addresses.
template <class F> struct osier_signature;
template <class... A> struct osier_signature<void (*)(A...)> {
    static constexpr size_t count = sizeof...(A);
    static constexpr size_t bytes[sizeof...(A) + 1] = {sizeof(A)..., 0};
    template <void (*f)(A...)> static void call(void **arguments) {
        spread<f>(arguments, std::index_sequence_for<A...>{});
    }
    template <void (*f)(A...), size_t... I> static void spread(void **arguments, std::index_sequence<I...>) {
        (void)arguments;
        f(*static_cast<A *>(arguments[I])...);
    }
};
#define OSIER_KERNEL(name)                                                     \
    {                                                                          \
        #name, &osier_signature<decltype(&name)>::template call<&name>,        \
            osier_signature<decltype(&name)>::bytes,                           \
            osier_signature<decltype(&name)>::count                            \
    }
