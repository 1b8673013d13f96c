// Entry points, written out: tools find kernels by these lines.
#include "copy.cuh"

extern "C" __global__ void osier_copy_regular_w1(osier_copy plan) { osier_copy_regular<1>(plan); }
extern "C" __global__ void osier_copy_regular_w2(osier_copy plan) { osier_copy_regular<2>(plan); }
extern "C" __global__ void osier_copy_regular_w4(osier_copy plan) { osier_copy_regular<4>(plan); }
extern "C" __global__ void osier_copy_regular_w8(osier_copy plan) { osier_copy_regular<8>(plan); }
extern "C" __global__ void osier_copy_regular_w16(osier_copy plan) { osier_copy_regular<16>(plan); }

extern "C" __global__ void osier_copy_general_w1(osier_copy plan) { osier_copy_general<1>(plan); }
extern "C" __global__ void osier_copy_general_w2(osier_copy plan) { osier_copy_general<2>(plan); }
extern "C" __global__ void osier_copy_general_w4(osier_copy plan) { osier_copy_general<4>(plan); }
extern "C" __global__ void osier_copy_general_w8(osier_copy plan) { osier_copy_general<8>(plan); }
extern "C" __global__ void osier_copy_general_w16(osier_copy plan) { osier_copy_general<16>(plan); }
