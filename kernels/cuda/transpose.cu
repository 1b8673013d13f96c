// Entry points, written out: tools find kernels by these lines.
#include "transpose.cuh"

extern "C" __global__ void osier_pack_transpose_w1(osier_transpose plan) { osier_move_transposed<1, true>(plan); }
extern "C" __global__ void osier_pack_transpose_w2(osier_transpose plan) { osier_move_transposed<2, true>(plan); }
extern "C" __global__ void osier_pack_transpose_w4(osier_transpose plan) { osier_move_transposed<4, true>(plan); }
extern "C" __global__ void osier_pack_transpose_w8(osier_transpose plan) { osier_move_transposed<8, true>(plan); }
extern "C" __global__ void osier_pack_transpose_w16(osier_transpose plan) { osier_move_transposed<16, true>(plan); }

extern "C" __global__ void osier_unpack_transpose_w1(osier_transpose plan) { osier_move_transposed<1, false>(plan); }
extern "C" __global__ void osier_unpack_transpose_w2(osier_transpose plan) { osier_move_transposed<2, false>(plan); }
extern "C" __global__ void osier_unpack_transpose_w4(osier_transpose plan) { osier_move_transposed<4, false>(plan); }
extern "C" __global__ void osier_unpack_transpose_w8(osier_transpose plan) { osier_move_transposed<8, false>(plan); }
extern "C" __global__ void osier_unpack_transpose_w16(osier_transpose plan) { osier_move_transposed<16, false>(plan); }
