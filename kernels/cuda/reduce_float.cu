// Entry points, written out: tools find kernels by these lines.
#include "reduce.cuh"

extern "C" __global__ void osier_reduce_float_f16_any(osier_reduction plan, osier_last last) { osier_reduce<osier_floats<osier_half>, 2>(plan); osier_tell(last); }
extern "C" __global__ void osier_reduce_float_f16_w16(osier_reduction plan, osier_last last) { osier_reduce<osier_floats<osier_half>, 16>(plan); osier_tell(last); }
extern "C" __global__ void osier_reduce_float_bf16_any(osier_reduction plan, osier_last last) { osier_reduce<osier_floats<osier_brain>, 2>(plan); osier_tell(last); }
extern "C" __global__ void osier_reduce_float_bf16_w16(osier_reduction plan, osier_last last) { osier_reduce<osier_floats<osier_brain>, 16>(plan); osier_tell(last); }
extern "C" __global__ void osier_reduce_float_f32(osier_reduction plan, osier_last last) { osier_reduce<osier_floats<osier_float>, 4>(plan); osier_tell(last); }
extern "C" __global__ void osier_reduce_float_f64(osier_reduction plan, osier_last last) { osier_reduce<osier_floats<osier_double>, 8>(plan); osier_tell(last); }

extern "C" __global__ void osier_reduce_float_c16(osier_reduction plan, osier_last last) { osier_reduce<osier_products<osier_half>, 4>(plan); osier_tell(last); }
extern "C" __global__ void osier_reduce_float_c32(osier_reduction plan, osier_last last) { osier_reduce<osier_products<osier_float>, 8>(plan); osier_tell(last); }
extern "C" __global__ void osier_reduce_float_c64(osier_reduction plan, osier_last last) { osier_reduce<osier_products<osier_double>, 16>(plan); osier_tell(last); }
