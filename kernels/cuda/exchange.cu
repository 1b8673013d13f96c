// Entry points, written out: tools find kernels by these lines.
#include "exchange.cuh"

extern "C" __global__ void osier_exchange_int1(osier_exchange plan) { osier_exchange_all<osier_integers<osier_u8, signed char>>(plan); }
extern "C" __global__ void osier_exchange_int2(osier_exchange plan) { osier_exchange_all<osier_integers<osier_u16, short>>(plan); }
extern "C" __global__ void osier_exchange_int4(osier_exchange plan) { osier_exchange_all<osier_integers<osier_u32, osier_i32>>(plan); }
extern "C" __global__ void osier_exchange_int8(osier_exchange plan) { osier_exchange_all<osier_integers<osier_u64, osier_i64>>(plan); }
extern "C" __global__ void osier_exchange_bits(osier_exchange plan) { osier_exchange_all<osier_bits_of<osier_u64>>(plan); }
extern "C" __global__ void osier_exchange_f16(osier_exchange plan) { osier_exchange_all<osier_floats<osier_half>>(plan); }
extern "C" __global__ void osier_exchange_bf16(osier_exchange plan) { osier_exchange_all<osier_floats<osier_brain>>(plan); }
extern "C" __global__ void osier_exchange_f32(osier_exchange plan) { osier_exchange_all<osier_floats<osier_float>>(plan); }
extern "C" __global__ void osier_exchange_f64(osier_exchange plan) { osier_exchange_all<osier_floats<osier_double>>(plan); }
extern "C" __global__ void osier_exchange_c16(osier_exchange plan) { osier_exchange_all<osier_products<osier_half>>(plan); }
extern "C" __global__ void osier_exchange_c32(osier_exchange plan) { osier_exchange_all<osier_products<osier_float>>(plan); }
