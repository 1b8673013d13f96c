// Entry points, written out: tools find kernels by these lines.
#include "reduce.cuh"

extern "C" __global__ void osier_reduce_bits_w1(osier_reduction plan, osier_last last) { osier_reduce<osier_bits_of<osier_u8>, 1>(plan); osier_tell(last); }
extern "C" __global__ void osier_reduce_bits_w4(osier_reduction plan, osier_last last) { osier_reduce<osier_bits_of<osier_u32>, 4>(plan); osier_tell(last); }
extern "C" __global__ void osier_reduce_bits_w16(osier_reduction plan, osier_last last) { osier_reduce<osier_bits_of<unsigned __int128>, 16>(plan); osier_tell(last); }
