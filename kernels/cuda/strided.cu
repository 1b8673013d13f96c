// Entry points, written out: tools find kernels by these lines.
#include "strided.cuh"

extern "C" __global__ void osier_pack_strided1_w1(osier_strided plan, osier_last last) { osier_move_strided<1, 1, true>(plan); osier_tell(last); }
extern "C" __global__ void osier_pack_strided1_w2(osier_strided plan, osier_last last) { osier_move_strided<2, 1, true>(plan); osier_tell(last); }
extern "C" __global__ void osier_pack_strided1_w4(osier_strided plan, osier_last last) { osier_move_strided<4, 1, true>(plan); osier_tell(last); }
extern "C" __global__ void osier_pack_strided1_w8(osier_strided plan, osier_last last) { osier_move_strided<8, 1, true>(plan); osier_tell(last); }
extern "C" __global__ void osier_pack_strided1_w16(osier_strided plan, osier_last last) { osier_move_strided<16, 1, true>(plan); osier_tell(last); }

extern "C" __global__ void osier_pack_strided2_w1(osier_strided plan, osier_last last) { osier_move_strided<1, 2, true>(plan); osier_tell(last); }
extern "C" __global__ void osier_pack_strided2_w2(osier_strided plan, osier_last last) { osier_move_strided<2, 2, true>(plan); osier_tell(last); }
extern "C" __global__ void osier_pack_strided2_w4(osier_strided plan, osier_last last) { osier_move_strided<4, 2, true>(plan); osier_tell(last); }
extern "C" __global__ void osier_pack_strided2_w8(osier_strided plan, osier_last last) { osier_move_strided<8, 2, true>(plan); osier_tell(last); }
extern "C" __global__ void osier_pack_strided2_w16(osier_strided plan, osier_last last) { osier_move_strided<16, 2, true>(plan); osier_tell(last); }

extern "C" __global__ void osier_pack_strided3_w1(osier_strided plan, osier_last last) { osier_move_strided<1, 3, true>(plan); osier_tell(last); }
extern "C" __global__ void osier_pack_strided3_w2(osier_strided plan, osier_last last) { osier_move_strided<2, 3, true>(plan); osier_tell(last); }
extern "C" __global__ void osier_pack_strided3_w4(osier_strided plan, osier_last last) { osier_move_strided<4, 3, true>(plan); osier_tell(last); }
extern "C" __global__ void osier_pack_strided3_w8(osier_strided plan, osier_last last) { osier_move_strided<8, 3, true>(plan); osier_tell(last); }
extern "C" __global__ void osier_pack_strided3_w16(osier_strided plan, osier_last last) { osier_move_strided<16, 3, true>(plan); osier_tell(last); }

extern "C" __global__ void osier_pack_strided4_w1(osier_strided plan, osier_last last) { osier_move_strided<1, 4, true>(plan); osier_tell(last); }
extern "C" __global__ void osier_pack_strided4_w2(osier_strided plan, osier_last last) { osier_move_strided<2, 4, true>(plan); osier_tell(last); }
extern "C" __global__ void osier_pack_strided4_w4(osier_strided plan, osier_last last) { osier_move_strided<4, 4, true>(plan); osier_tell(last); }
extern "C" __global__ void osier_pack_strided4_w8(osier_strided plan, osier_last last) { osier_move_strided<8, 4, true>(plan); osier_tell(last); }
extern "C" __global__ void osier_pack_strided4_w16(osier_strided plan, osier_last last) { osier_move_strided<16, 4, true>(plan); osier_tell(last); }

extern "C" __global__ void osier_unpack_strided1_w1(osier_strided plan, osier_last last) { osier_move_strided<1, 1, false>(plan); osier_tell(last); }
extern "C" __global__ void osier_unpack_strided1_w2(osier_strided plan, osier_last last) { osier_move_strided<2, 1, false>(plan); osier_tell(last); }
extern "C" __global__ void osier_unpack_strided1_w4(osier_strided plan, osier_last last) { osier_move_strided<4, 1, false>(plan); osier_tell(last); }
extern "C" __global__ void osier_unpack_strided1_w8(osier_strided plan, osier_last last) { osier_move_strided<8, 1, false>(plan); osier_tell(last); }
extern "C" __global__ void osier_unpack_strided1_w16(osier_strided plan, osier_last last) { osier_move_strided<16, 1, false>(plan); osier_tell(last); }

extern "C" __global__ void osier_unpack_strided2_w1(osier_strided plan, osier_last last) { osier_move_strided<1, 2, false>(plan); osier_tell(last); }
extern "C" __global__ void osier_unpack_strided2_w2(osier_strided plan, osier_last last) { osier_move_strided<2, 2, false>(plan); osier_tell(last); }
extern "C" __global__ void osier_unpack_strided2_w4(osier_strided plan, osier_last last) { osier_move_strided<4, 2, false>(plan); osier_tell(last); }
extern "C" __global__ void osier_unpack_strided2_w8(osier_strided plan, osier_last last) { osier_move_strided<8, 2, false>(plan); osier_tell(last); }
extern "C" __global__ void osier_unpack_strided2_w16(osier_strided plan, osier_last last) { osier_move_strided<16, 2, false>(plan); osier_tell(last); }

extern "C" __global__ void osier_unpack_strided3_w1(osier_strided plan, osier_last last) { osier_move_strided<1, 3, false>(plan); osier_tell(last); }
extern "C" __global__ void osier_unpack_strided3_w2(osier_strided plan, osier_last last) { osier_move_strided<2, 3, false>(plan); osier_tell(last); }
extern "C" __global__ void osier_unpack_strided3_w4(osier_strided plan, osier_last last) { osier_move_strided<4, 3, false>(plan); osier_tell(last); }
extern "C" __global__ void osier_unpack_strided3_w8(osier_strided plan, osier_last last) { osier_move_strided<8, 3, false>(plan); osier_tell(last); }
extern "C" __global__ void osier_unpack_strided3_w16(osier_strided plan, osier_last last) { osier_move_strided<16, 3, false>(plan); osier_tell(last); }

extern "C" __global__ void osier_unpack_strided4_w1(osier_strided plan, osier_last last) { osier_move_strided<1, 4, false>(plan); osier_tell(last); }
extern "C" __global__ void osier_unpack_strided4_w2(osier_strided plan, osier_last last) { osier_move_strided<2, 4, false>(plan); osier_tell(last); }
extern "C" __global__ void osier_unpack_strided4_w4(osier_strided plan, osier_last last) { osier_move_strided<4, 4, false>(plan); osier_tell(last); }
extern "C" __global__ void osier_unpack_strided4_w8(osier_strided plan, osier_last last) { osier_move_strided<8, 4, false>(plan); osier_tell(last); }
extern "C" __global__ void osier_unpack_strided4_w16(osier_strided plan, osier_last last) { osier_move_strided<16, 4, false>(plan); osier_tell(last); }
