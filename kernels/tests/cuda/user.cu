// A reduction kernel as a user would write it: left = left + 2 right.
extern "C" __global__ void osier_test_axpy(void* left, const void* right, unsigned long long count) {
    double* const to = (double*)left;
    const double* const from = (const double*)right;
    const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        to[i] = to[i] + 2.0 * from[i];
    }
}
