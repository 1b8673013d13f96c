#pragma once
__device__ __forceinline__ unsigned plus_one(unsigned v) { return v + 1; }
