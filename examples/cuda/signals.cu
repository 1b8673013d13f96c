// Signals between the kernels of two ranks, back and forth: by calls of a team, and by plain stores and
// loads of words of the same kind, which is the floor.
#include "osier_device.cuh"

struct example_signals_plan {
    osier_team team;
    osier_word *word;      // in the heap: the round that has come
    osier_word rounds;
    osier_word base;       // rounds of the kernels before
    unsigned peer;         // the own rank: this one does nothing
    unsigned begins;
};

extern "C" __global__ void example_signals_team(example_signals_plan plan) {
    const osier_team &team = plan.team;
    if (plan.peer == team.rank) return;
    for (osier_word round = plan.base + 1; round <= plan.base + plan.rounds; round++) {
        if (plan.begins) osier_signal_set(team, plan.word, round, plan.peer);
        if (!osier_wait(team, plan.word, OSIER_AT_LEAST, round)) return;
        if (!plan.begins) osier_signal_set(team, plan.word, round, plan.peer);
    }
}

// Looks at its word alone, so that it waits for ever if the peer's kernel does not run.
extern "C" __global__ void example_signals_bare(example_signals_plan plan) {
    if (plan.peer == plan.team.rank) return;
    osier_word *const there = osier_peer(plan.team, plan.word, plan.peer);
    for (osier_word round = plan.base + 1; round <= plan.base + plan.rounds; round++) {
        if (plan.begins) osier_store_release(there, round);
        while (osier_load_acquire(plan.word) < round) {
#ifndef __CUDA_ARCH__
            __nanosleep(0);
#endif
        }
        if (!plan.begins) osier_store_release(there, round);
    }
}
