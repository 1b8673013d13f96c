// What a compiler calls before each access when it is told to look for data races:
// here the driver is told of it. Included once per library, in its table.
//
// Atomic accesses are what threads agree by: they are carried out, and told with the order that the
// kernel asks for; of writes also that there was one, for the host may see it while the kernel
// runs.
#pragma once

extern "C" {
#define OSIER_HIDDEN __attribute__((visibility("hidden")))
static inline void osier_told(const void *at, size_t bytes, int write) {
    // Indices of thread and block are read all the time, and are nobody's memory.
    if ((size_t)((const char *)at - (const char *)&osier_state) < sizeof osier_state) return;
    // Nor is the thread's own stack, half of all accesses; the driver knows all of it.
    const size_t near = 16 << 10;
    if ((size_t)((const char *)at - (const char *)__builtin_frame_address(0)) + near < 2 * near) return;
    if (osier_state.access) osier_state.access(at, bytes, write);
}
// What lies beside a stack may be anybody's, and this is seldom.
enum { OSIER_ATOMIC_LOAD, OSIER_ATOMIC_STORE, OSIER_ATOMIC_UPDATE, OSIER_ATOMIC_FENCE };
static inline void osier_told_atomic(const volatile void *at, size_t bytes, int act, int order,
                                     unsigned long long before, unsigned long long after) {
    if (!osier_state.access) return;
    if (act != OSIER_ATOMIC_LOAD) osier_state.access((const void *)at, bytes, 2);
    osier_state.atomic((const void *)at, act, order, bytes, before, after);
}
#define OSIER_ACCESS(NAME, BYTES)                                                     \
    OSIER_HIDDEN void __tsan_read##NAME(void *at) { osier_told(at, BYTES, 0); }       \
    OSIER_HIDDEN void __tsan_write##NAME(void *at) { osier_told(at, BYTES, 1); }      \
    OSIER_HIDDEN void __tsan_unaligned_read##NAME(void *at) { osier_told(at, BYTES, 0); } \
    OSIER_HIDDEN void __tsan_unaligned_write##NAME(void *at) { osier_told(at, BYTES, 1); } \
    OSIER_HIDDEN void __tsan_volatile_read##NAME(void *at) { osier_told(at, BYTES, 0); } \
    OSIER_HIDDEN void __tsan_volatile_write##NAME(void *at) { osier_told(at, BYTES, 1); }
OSIER_ACCESS(1, 1)
OSIER_ACCESS(2, 2)
OSIER_ACCESS(4, 4)
OSIER_ACCESS(8, 8)
OSIER_ACCESS(16, 16)
OSIER_HIDDEN void __tsan_read_range(void *at, size_t bytes) { osier_told(at, bytes, 0); }
OSIER_HIDDEN void __tsan_write_range(void *at, size_t bytes) { osier_told(at, bytes, 1); }
OSIER_HIDDEN void __tsan_init(void) {}
OSIER_HIDDEN void __tsan_func_entry(void *) {}
OSIER_HIDDEN void __tsan_func_exit(void) {}
OSIER_HIDDEN void __tsan_atomic_thread_fence(int order) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (osier_state.access) osier_state.atomic(0, OSIER_ATOMIC_FENCE, order, 0, 0, 0);
}
OSIER_HIDDEN void __tsan_atomic_signal_fence(int) { __atomic_signal_fence(__ATOMIC_SEQ_CST); }

#define OSIER_FETCH(BITS, TYPE, NAME, AFTER)                                          \
    OSIER_HIDDEN TYPE __tsan_atomic##BITS##_##NAME(volatile TYPE *at, TYPE v, int order) { \
        const TYPE before = __atomic_##NAME(at, v, __ATOMIC_SEQ_CST);                 \
        osier_told_atomic(at, sizeof(TYPE), OSIER_ATOMIC_UPDATE, order, before, (TYPE)(AFTER)); \
        return before;                                                                \
    }
#define OSIER_SWAP(BITS, TYPE, NAME, WEAK)                                            \
    OSIER_HIDDEN int __tsan_atomic##BITS##_##NAME(volatile TYPE *at, TYPE *expected, TYPE v, int order, int failed) { \
        const int swapped = __atomic_compare_exchange_n(at, expected, v, WEAK, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
        osier_told_atomic(at, sizeof(TYPE), swapped ? OSIER_ATOMIC_UPDATE : OSIER_ATOMIC_LOAD, \
                          swapped ? order : failed, *expected, swapped ? v : *expected); \
        return swapped;                                                               \
    }
#define OSIER_ATOMICS(BITS, TYPE)                                                     \
    OSIER_HIDDEN TYPE __tsan_atomic##BITS##_load(const volatile TYPE *at, int order) { \
        const TYPE there = __atomic_load_n(at, __ATOMIC_SEQ_CST);                     \
        osier_told_atomic(at, sizeof(TYPE), OSIER_ATOMIC_LOAD, order, there, there);  \
        return there;                                                                 \
    }                                                                                 \
    OSIER_HIDDEN void __tsan_atomic##BITS##_store(volatile TYPE *at, TYPE v, int order) { \
        __atomic_store_n(at, v, __ATOMIC_SEQ_CST);                                    \
        osier_told_atomic(at, sizeof(TYPE), OSIER_ATOMIC_STORE, order, 0, v);         \
    }                                                                                 \
    OSIER_HIDDEN TYPE __tsan_atomic##BITS##_exchange(volatile TYPE *at, TYPE v, int order) { \
        const TYPE before = __atomic_exchange_n(at, v, __ATOMIC_SEQ_CST);             \
        osier_told_atomic(at, sizeof(TYPE), OSIER_ATOMIC_UPDATE, order, before, v);   \
        return before;                                                                \
    }                                                                                 \
    OSIER_FETCH(BITS, TYPE, fetch_add, before + v)                                    \
    OSIER_FETCH(BITS, TYPE, fetch_sub, before - v)                                    \
    OSIER_FETCH(BITS, TYPE, fetch_and, before & v)                                    \
    OSIER_FETCH(BITS, TYPE, fetch_or, before | v)                                     \
    OSIER_FETCH(BITS, TYPE, fetch_xor, before ^ v)                                    \
    OSIER_FETCH(BITS, TYPE, fetch_nand, ~(before & v))                                \
    OSIER_SWAP(BITS, TYPE, compare_exchange_strong, false)                            \
    OSIER_SWAP(BITS, TYPE, compare_exchange_weak, true)                               \
    OSIER_HIDDEN TYPE __tsan_atomic##BITS##_compare_exchange_val(volatile TYPE *at, TYPE expected, TYPE v, int order, int failed) { \
        const TYPE wanted = expected;                                                 \
        const bool swapped = __atomic_compare_exchange_n(at, &expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
        osier_told_atomic(at, sizeof(TYPE), swapped ? OSIER_ATOMIC_UPDATE : OSIER_ATOMIC_LOAD, \
                          swapped ? order : failed, expected, swapped ? v : expected); \
        return swapped ? wanted : expected;                                           \
    }
OSIER_ATOMICS(8, unsigned char)
OSIER_ATOMICS(16, unsigned short)
OSIER_ATOMICS(32, unsigned)
OSIER_ATOMICS(64, unsigned long)
}
