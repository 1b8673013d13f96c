// Entry points, written out: tools find kernels by these lines.
#include "general.cuh"

// With the bound ptxas needs fewer instructions; its 80 registers leave as many blocks as the
// 72 without.
extern "C" __global__ void __launch_bounds__(256, 3) osier_pack_general_w1(osier_general plan, osier_last last) { osier_move_general<1, true>(plan); osier_tell(last); }
extern "C" __global__ void osier_pack_general_w2(osier_general plan, osier_last last) { osier_move_general<2, true>(plan); osier_tell(last); }
extern "C" __global__ void osier_pack_general_w4(osier_general plan, osier_last last) { osier_move_general<4, true>(plan); osier_tell(last); }
extern "C" __global__ void osier_pack_general_w8(osier_general plan, osier_last last) { osier_move_general<8, true>(plan); osier_tell(last); }
extern "C" __global__ void osier_pack_general_w16(osier_general plan, osier_last last) { osier_move_general<16, true>(plan); osier_tell(last); }

extern "C" __global__ void osier_unpack_general_w1(osier_general plan, osier_last last) { osier_move_general<1, false>(plan); osier_tell(last); }
extern "C" __global__ void osier_unpack_general_w2(osier_general plan, osier_last last) { osier_move_general<2, false>(plan); osier_tell(last); }
extern "C" __global__ void osier_unpack_general_w4(osier_general plan, osier_last last) { osier_move_general<4, false>(plan); osier_tell(last); }
extern "C" __global__ void osier_unpack_general_w8(osier_general plan, osier_last last) { osier_move_general<8, false>(plan); osier_tell(last); }
extern "C" __global__ void osier_unpack_general_w16(osier_general plan, osier_last last) { osier_move_general<16, false>(plan); osier_tell(last); }
