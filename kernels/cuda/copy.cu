// Entry points, written out: tools find kernels by these lines.
#include "copy.cuh"
#include "period.cuh"

extern "C" __global__ void osier_copy_w1(osier_copy plan) { osier_copy_layouts<1>(plan); }
extern "C" __global__ void osier_copy_w2(osier_copy plan) { osier_copy_layouts<2>(plan); }
extern "C" __global__ void osier_copy_w4(osier_copy plan) { osier_copy_layouts<4>(plan); }
extern "C" __global__ void osier_copy_w8(osier_copy plan) { osier_copy_layouts<8>(plan); }
extern "C" __global__ void osier_copy_w16(osier_copy plan) { osier_copy_layouts<16>(plan); }

extern "C" __global__ void osier_copy_periods(osier_periods plan) { osier_move_periods(plan); }
