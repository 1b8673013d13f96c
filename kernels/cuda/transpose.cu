// Entry points, written out: tools find kernels by these lines.
#include "transpose.cuh"

extern "C" __global__ void osier_transpose_w1(osier_transpose plan, osier_last last) { osier_move_transposed<1, 4>(plan); osier_tell(last); }
extern "C" __global__ void osier_transpose_w2(osier_transpose plan, osier_last last) { osier_move_transposed<2, 2>(plan); osier_tell(last); }
extern "C" __global__ void osier_transpose_w4(osier_transpose plan, osier_last last) { osier_move_transposed<4, 1>(plan); osier_tell(last); }
extern "C" __global__ void osier_transpose_w8(osier_transpose plan, osier_last last) { osier_move_transposed<8, 1>(plan); osier_tell(last); }
extern "C" __global__ void osier_transpose_w16(osier_transpose plan, osier_last last) { osier_move_transposed<16, 1>(plan); osier_tell(last); }
