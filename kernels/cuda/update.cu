// Entry points, written out: tools find kernels by these lines.
#include "update.cuh"

extern "C" __global__ void osier_update_int1(osier_update plan, osier_last last) { osier_update_each<osier_updated_integers<osier_u8, signed char>, osier_u8>(plan); osier_tell(last); }
extern "C" __global__ void osier_update_int2(osier_update plan, osier_last last) { osier_update_each<osier_updated_integers<osier_u16, short>, osier_u16>(plan); osier_tell(last); }
extern "C" __global__ void osier_update_int4(osier_update plan, osier_last last) { osier_update_each<osier_updated_integers<osier_u32, osier_i32>, osier_u32>(plan); osier_tell(last); }
extern "C" __global__ void osier_update_int8(osier_update plan, osier_last last) { osier_update_each<osier_updated_integers<osier_u64, osier_i64>, osier_u64>(plan); osier_tell(last); }
extern "C" __global__ void osier_update_f16(osier_update plan, osier_last last) { osier_update_each<osier_updated_floats<osier_half>, osier_u16>(plan); osier_tell(last); }
extern "C" __global__ void osier_update_bf16(osier_update plan, osier_last last) { osier_update_each<osier_updated_floats<osier_brain>, osier_u16>(plan); osier_tell(last); }
extern "C" __global__ void osier_update_f32(osier_update plan, osier_last last) { osier_update_each<osier_updated_floats<osier_float>, osier_u32>(plan); osier_tell(last); }
extern "C" __global__ void osier_update_f64(osier_update plan, osier_last last) { osier_update_each<osier_updated_floats<osier_double>, osier_u64>(plan); osier_tell(last); }
