// Entry points, written out: tools find kernels by these lines.
#include "funnel.cuh"

extern "C" __global__ void osier_pack_funnel_strides(osier_general plan) { osier_funnel<false, true>(plan); }
extern "C" __global__ void osier_pack_funnel_lists(osier_general plan) { osier_funnel<true, true>(plan); }
extern "C" __global__ void osier_unpack_funnel_strides(osier_general plan) { osier_funnel<false, false>(plan); }
extern "C" __global__ void osier_unpack_funnel_lists(osier_general plan) { osier_funnel<true, false>(plan); }
