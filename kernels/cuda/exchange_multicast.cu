// Entry points with multicast, of the elements that are reduced most; what combines others
// stores to one rank after the other. For sm_90 and PTX 8.1 (xtask/src/kernels.rs).
#include "exchange.cuh"

extern "C" __global__ void osier_exchange_multicast_int4(osier_exchange plan) { osier_exchange_all<osier_integers<osier_u32, osier_i32>, true>(plan); }
extern "C" __global__ void osier_exchange_multicast_int8(osier_exchange plan) { osier_exchange_all<osier_integers<osier_u64, osier_i64>, true>(plan); }
extern "C" __global__ void osier_exchange_multicast_bits(osier_exchange plan) { osier_exchange_all<osier_bits_of<osier_u64>, true>(plan); }
extern "C" __global__ void osier_exchange_multicast_f16(osier_exchange plan) { osier_exchange_all<osier_floats<osier_half>, true>(plan); }
extern "C" __global__ void osier_exchange_multicast_bf16(osier_exchange plan) { osier_exchange_all<osier_floats<osier_brain>, true>(plan); }
extern "C" __global__ void osier_exchange_multicast_f32(osier_exchange plan) { osier_exchange_all<osier_floats<osier_float>, true>(plan); }
extern "C" __global__ void osier_exchange_multicast_f64(osier_exchange plan) { osier_exchange_all<osier_floats<osier_double>, true>(plan); }
