// Jacobi steps on a 2-D field whose rows are spread over ranks: in one kernel that exchanges its
// ghost rows itself, and one step by a kernel, for a host that exchanges them. Both add in the same order, so
// the fields are equal bit for bit.
#include "osier_device.cuh"

// A field has rows + 2 rows of columns + 2 points, ghosts among them.
struct example_halo_plan {
    osier_team team;
    double *fields[2];               // in the heap: step s reads fields[s % 2]
    osier_word *arrived;             // in the heap: steps whose row has come from above, and from below
    osier_word *met;                 // of the device: blocks at a barrier
    unsigned long long rows, columns, steps;
    unsigned neighbors[2];           // ranks above and below; the own one where the field ends
};

static __device__ __forceinline__ void example_halo_rows(
    const double *from, double *to, unsigned long long rows, unsigned long long columns
) {
    const unsigned long long row = columns + 2;
    for (unsigned long long y = 1 + blockIdx.x; y <= rows; y += gridDim.x) {
        for (unsigned long long x = 1 + threadIdx.x; x <= columns; x += blockDim.x) {
            const double *const at = from + y * row + x;
            to[y * row + x] = 0.25 * ((at[-1] + at[1]) + (*(at - row) + at[row]));
        }
    }
}

extern "C" __global__ void example_halo_steps(example_halo_plan plan) {
    const osier_team &team = plan.team;
    const unsigned long long row = plan.columns + 2, bytes = plan.columns * sizeof(double);
    for (unsigned long long step = 0; step < plan.steps; step++) {
        double *const to = plan.fields[(step + 1) % 2];
        example_halo_rows(plan.fields[step % 2], to, plan.rows, plan.columns);
        if (!osier_grid_barrier(team, plan.met)) return;
        if (blockIdx.x == 0) {
            // A neighbor's ghost row is read in its next step, and was in the step before the last: that is
            // over where it has told of the last.
            const unsigned above = plan.neighbors[0], below = plan.neighbors[1];
            if (above != team.rank) {
                osier_put_signal_block(team, to + (plan.rows + 1) * row + 1, to + row + 1, bytes, plan.arrived + 1, step + 1, above);
            }
            if (below != team.rank) {
                osier_put_signal_block(team, to + 1, to + plan.rows * row + 1, bytes, plan.arrived, step + 1, below);
            }
            if (above != team.rank && !osier_wait_block(team, plan.arrived, OSIER_AT_LEAST, step + 1)) return;
            if (below != team.rank && !osier_wait_block(team, plan.arrived + 1, OSIER_AT_LEAST, step + 1)) return;
        }
        if (!osier_grid_barrier(team, plan.met)) return;
    }
}

struct example_halo_step_plan {
    const double *from;
    double *to;
    unsigned long long rows, columns;
};

extern "C" __global__ void example_halo_step(example_halo_step_plan plan) {
    example_halo_rows(plan.from, plan.to, plan.rows, plan.columns);
}
