// Entry points, written out: tools find kernels by these lines.
#include "reduce.cuh"

extern "C" __global__ void osier_reduce_int1_any(osier_reduction plan) { osier_reduce<osier_integers<osier_u8, signed char>, 1>(plan); }
extern "C" __global__ void osier_reduce_int1_w16(osier_reduction plan) { osier_reduce<osier_integers<osier_u8, signed char>, 16>(plan); }
extern "C" __global__ void osier_reduce_int2_any(osier_reduction plan) { osier_reduce<osier_integers<osier_u16, short>, 2>(plan); }
extern "C" __global__ void osier_reduce_int2_w16(osier_reduction plan) { osier_reduce<osier_integers<osier_u16, short>, 16>(plan); }
extern "C" __global__ void osier_reduce_int4_any(osier_reduction plan) { osier_reduce<osier_integers<osier_u32, osier_i32>, 4>(plan); }
extern "C" __global__ void osier_reduce_int4_w16(osier_reduction plan) { osier_reduce<osier_integers<osier_u32, osier_i32>, 16>(plan); }
extern "C" __global__ void osier_reduce_int8_any(osier_reduction plan) { osier_reduce<osier_integers<osier_u64, osier_i64>, 8>(plan); }
extern "C" __global__ void osier_reduce_int8_w16(osier_reduction plan) { osier_reduce<osier_integers<osier_u64, osier_i64>, 16>(plan); }
extern "C" __global__ void osier_reduce_int16_any(osier_reduction plan) { osier_reduce<osier_integers<unsigned __int128, __int128>, 16>(plan); }

extern "C" __global__ void osier_reduce_int_bits_w1(osier_reduction plan) { osier_reduce<osier_bits_of<osier_u8>, 1>(plan); }
extern "C" __global__ void osier_reduce_int_bits_w2(osier_reduction plan) { osier_reduce<osier_bits_of<osier_u16>, 2>(plan); }
extern "C" __global__ void osier_reduce_int_bits_w4(osier_reduction plan) { osier_reduce<osier_bits_of<osier_u32>, 4>(plan); }
extern "C" __global__ void osier_reduce_int_bits_w8(osier_reduction plan) { osier_reduce<osier_bits_of<osier_u64>, 8>(plan); }
extern "C" __global__ void osier_reduce_int_bits_w16(osier_reduction plan) { osier_reduce<osier_bits_of<unsigned __int128>, 16>(plan); }
