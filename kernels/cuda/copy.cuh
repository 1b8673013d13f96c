// From one layout to another, with nothing between: a word of the packed stream
// finds its place in both.
#pragma once
#include "general.cuh"

// One of the two layouts of a launch.
struct osier_side {
    osier_u8* layout;  // origin of the layout, base included
    osier_nest nest;
};

struct osier_copy {
    osier_side from;
    osier_side to;
    osier_u64 start;  // packed bytes
    osier_u64 end;
    osier_u32 wide;   // word numbers need 64 bits
    osier_u32 unused;
};

// Strides alone, as many as there are: no list, no table.
template <int W, class I> struct osier_regular_nest {
    const osier_nest& plan;

    __device__ __forceinline__ osier_i64 at(I word) const {
        I rest = osier_quotient(plan.core, word);
        osier_i64 offset = (osier_i64)(word - rest * (I)plan.core.value) * W;
#pragma unroll 1
        for (osier_u32 k = 1; k < plan.dimensions; k++) {
            const osier_dimension& dimension = plan.dimension[k - 1];
            const I next = osier_quotient(dimension.count, rest);
            offset += (osier_i64)(rest - next * (I)dimension.count.value) * dimension.stride;
            rest = next;
        }
        return plan.dimensions ? offset + (osier_i64)rest * plan.dimension[plan.dimensions - 1].stride : offset;
    }
};

// As osier_move, with a layout on each side.
template <int W, int ITEMS, class I, class N>
static __device__ __forceinline__ void osier_transfer(const osier_copy& plan, const N& from, const N& to) {
    typedef typename osier_word<W>::type word;
    const osier_u64 first = (plan.start + (W - 1)) / W;
    const osier_u64 last = plan.end / W;
    if (first < last) {
        const I end = (I)last;
        const I apart = (I)blockDim.x;
        const I step = (I)gridDim.x * apart * ITEMS;
        for (I at = (I)first + (I)blockIdx.x * apart * ITEMS + (I)threadIdx.x; at < end; at += step) {
            word moved[ITEMS];
#pragma unroll
            for (int k = 0; k < ITEMS; k++) {
                const I number = at + (I)k * apart;
                if (number < end) moved[k] = *(const word*)(plan.from.layout + from.at(number));
            }
#pragma unroll
            for (int k = 0; k < ITEMS; k++) {
                const I number = at + (I)k * apart;
                if (number < end) *(word*)(plan.to.layout + to.at(number)) = moved[k];
            }
        }
    }
    // The ragged ends, byte by byte, as in osier_move.
    if (W > 1 && blockIdx.x == 0 && threadIdx.x < 2 * W) {
        const bool behind = threadIdx.x >= W;
        const osier_u64 begin = first * W, until = last * W > begin ? last * W : begin;
        const osier_u64 byte = behind ? until + (threadIdx.x - W) : plan.start + threadIdx.x;
        const osier_u64 stop = behind ? plan.end : (begin < plan.end ? begin : plan.end);
        if (byte < stop) {
            const I number = (I)(byte / W);
            plan.to.layout[to.at(number) + (osier_i64)(byte % W)] =
                plan.from.layout[from.at(number) + (osier_i64)(byte % W)];
        }
    }
}

template <int W> static __device__ __forceinline__ void osier_copy_regular(const osier_copy& plan) {
    if (plan.wide) {
        const osier_regular_nest<W, osier_u64> from = {plan.from.nest}, to = {plan.to.nest};
        osier_transfer<W, 4, osier_u64>(plan, from, to);
    } else {
        const osier_regular_nest<W, osier_u32> from = {plan.from.nest}, to = {plan.to.nest};
        osier_transfer<W, 4, osier_u32>(plan, from, to);
    }
}

template <int W> static __device__ __forceinline__ void osier_copy_general(const osier_copy& plan) {
    if (plan.wide) {
        const osier_general_nest<W, osier_u64> from = {plan.from.nest}, to = {plan.to.nest};
        osier_transfer<W, 2, osier_u64>(plan, from, to);
    } else {
        const osier_general_nest<W, osier_u32> from = {plan.from.nest}, to = {plan.to.nest};
        osier_transfer<W, 2, osier_u32>(plan, from, to);
    }
}
