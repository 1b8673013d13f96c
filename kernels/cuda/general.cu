// Entry points, written out: tools find kernels by these lines.
#include "general.cuh"

// Bounds, for sm_90: without one ptxas takes 56 registers for words of 8 bytes, of which 4 blocks
// are resident, not 5, and 69 for an unpack of single bytes or 70 for a pack of two, 3 and not 4;
// a pack of single bytes needs fewer instructions with its bound, which leaves as many blocks as
// its 72 registers without.
extern "C" __global__ void __launch_bounds__(256, 3) osier_pack_general_w1(osier_general plan, osier_last last) { osier_move_general<1, true>(plan); osier_tell(last); }
extern "C" __global__ void __launch_bounds__(256, 4) osier_pack_general_w2(osier_general plan, osier_last last) { osier_move_general<2, true>(plan); osier_tell(last); }
extern "C" __global__ void osier_pack_general_w4(osier_general plan, osier_last last) { osier_move_general<4, true>(plan); osier_tell(last); }
extern "C" __global__ void __launch_bounds__(256, 5) osier_pack_general_w8(osier_general plan, osier_last last) { osier_move_general<8, true>(plan); osier_tell(last); }
extern "C" __global__ void __launch_bounds__(256, 5) osier_pack_general_w16(osier_general plan, osier_last last) { osier_move_general<16, true>(plan); osier_tell(last); }

extern "C" __global__ void __launch_bounds__(256, 4) osier_unpack_general_w1(osier_general plan, osier_last last) { osier_move_general<1, false>(plan); osier_tell(last); }
extern "C" __global__ void osier_unpack_general_w2(osier_general plan, osier_last last) { osier_move_general<2, false>(plan); osier_tell(last); }
extern "C" __global__ void osier_unpack_general_w4(osier_general plan, osier_last last) { osier_move_general<4, false>(plan); osier_tell(last); }
extern "C" __global__ void __launch_bounds__(256, 5) osier_unpack_general_w8(osier_general plan, osier_last last) { osier_move_general<8, false>(plan); osier_tell(last); }
extern "C" __global__ void __launch_bounds__(256, 5) osier_unpack_general_w16(osier_general plan, osier_last last) { osier_move_general<16, false>(plan); osier_tell(last); }
