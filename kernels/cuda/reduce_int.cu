// Entry points, written out: tools find kernels by these lines.
#include "reduce.cuh"

extern "C" __global__ void osier_reduce_int1_any(osier_reduction plan, osier_last last) { osier_reduce<osier_integers<osier_u8, signed char>, 1>(plan); osier_tell(last); }
extern "C" __global__ void osier_reduce_int1_w16(osier_reduction plan, osier_last last) { osier_reduce<osier_integers<osier_u8, signed char>, 16>(plan); osier_tell(last); }
extern "C" __global__ void osier_reduce_int2_any(osier_reduction plan, osier_last last) { osier_reduce<osier_integers<osier_u16, short>, 2>(plan); osier_tell(last); }
extern "C" __global__ void osier_reduce_int2_w16(osier_reduction plan, osier_last last) { osier_reduce<osier_integers<osier_u16, short>, 16>(plan); osier_tell(last); }
extern "C" __global__ void osier_reduce_int4(osier_reduction plan, osier_last last) { osier_reduce<osier_integers<osier_u32, osier_i32>, 4>(plan); osier_tell(last); }
extern "C" __global__ void osier_reduce_int8(osier_reduction plan, osier_last last) { osier_reduce<osier_integers<osier_u64, osier_i64>, 8>(plan); osier_tell(last); }
extern "C" __global__ void osier_reduce_int16(osier_reduction plan, osier_last last) { osier_reduce<osier_integers<unsigned __int128, __int128>, 16>(plan); osier_tell(last); }
