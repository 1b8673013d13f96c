// Entry points, written out: tools find kernels by these lines.
#include "general.cuh"

extern "C" __global__ void osier_pack_general_w1(osier_general plan) { osier_move_general<1, true>(plan); }
extern "C" __global__ void osier_pack_general_w2(osier_general plan) { osier_move_general<2, true>(plan); }
extern "C" __global__ void osier_pack_general_w4(osier_general plan) { osier_move_general<4, true>(plan); }
extern "C" __global__ void osier_pack_general_w8(osier_general plan) { osier_move_general<8, true>(plan); }
extern "C" __global__ void osier_pack_general_w16(osier_general plan) { osier_move_general<16, true>(plan); }

extern "C" __global__ void osier_unpack_general_w1(osier_general plan) { osier_move_general<1, false>(plan); }
extern "C" __global__ void osier_unpack_general_w2(osier_general plan) { osier_move_general<2, false>(plan); }
extern "C" __global__ void osier_unpack_general_w4(osier_general plan) { osier_move_general<4, false>(plan); }
extern "C" __global__ void osier_unpack_general_w8(osier_general plan) { osier_move_general<8, false>(plan); }
extern "C" __global__ void osier_unpack_general_w16(osier_general plan) { osier_move_general<16, false>(plan); }
