// Entry points, written out: tools find kernels by these lines.
#include "copy.cuh"
#include "period.cuh"

extern "C" __global__ void osier_copy_w1(osier_copy plan, osier_last last) { osier_copy_layouts<1>(plan); osier_tell(last); }
extern "C" __global__ void osier_copy_w2(osier_copy plan, osier_last last) { osier_copy_layouts<2>(plan); osier_tell(last); }
extern "C" __global__ void osier_copy_w4(osier_copy plan, osier_last last) { osier_copy_layouts<4>(plan); osier_tell(last); }
extern "C" __global__ void osier_copy_w8(osier_copy plan, osier_last last) { osier_copy_layouts<8>(plan); osier_tell(last); }
extern "C" __global__ void osier_copy_w16(osier_copy plan, osier_last last) { osier_copy_layouts<16>(plan); osier_tell(last); }

extern "C" __global__ void osier_copy_periods(osier_periods plan, osier_last last) { osier_move_periods(plan); osier_tell(last); }
