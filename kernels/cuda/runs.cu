// Entry points, written out: tools find kernels by these lines.
// With the bound 8 blocks are resident; words of 8 bytes spill three registers for it.
#include "runs.cuh"

extern "C" __global__ void __launch_bounds__(256, 8) osier_pack_runs_w4(osier_runs plan, osier_last last) { osier_move_runs<4, true>(plan); osier_tell(last); }
extern "C" __global__ void __launch_bounds__(256, 8) osier_pack_runs_w8(osier_runs plan, osier_last last) { osier_move_runs<8, true>(plan); osier_tell(last); }
extern "C" __global__ void __launch_bounds__(256, 8) osier_pack_runs_w16(osier_runs plan, osier_last last) { osier_move_runs<16, true>(plan); osier_tell(last); }

extern "C" __global__ void __launch_bounds__(256, 8) osier_unpack_runs_w4(osier_runs plan, osier_last last) { osier_move_runs<4, false>(plan); osier_tell(last); }
extern "C" __global__ void __launch_bounds__(256, 8) osier_unpack_runs_w8(osier_runs plan, osier_last last) { osier_move_runs<8, false>(plan); osier_tell(last); }
extern "C" __global__ void __launch_bounds__(256, 8) osier_unpack_runs_w16(osier_runs plan, osier_last last) { osier_move_runs<16, false>(plan); osier_tell(last); }
