// One Jacobi sweep over a block with ghosts: every point becomes the mean of its six
// neighbours. The order of the additions is that of the host's sweep, and nothing is
// fused, so the fields are equal bit for bit.
struct jacobi_sweep_plan {
    const double* from;
    double* to;
    // Points along z, y and x, without ghosts.
    unsigned long long points[3];
};

extern "C" __global__ void example_jacobi_sweep(jacobi_sweep_plan plan) {
    const unsigned long long nx = plan.points[2], ny = plan.points[1];
    const unsigned long long row = nx + 2, plane = row * (ny + 2);
    const unsigned long long rows = plan.points[0] * ny;
    // Threads of a block along a row, blocks over rows.
    for (unsigned long long r = blockIdx.x; r < rows; r += gridDim.x) {
        const unsigned long long start = (r / ny + 1) * plane + (r % ny + 1) * row + 1;
        for (unsigned long long x = threadIdx.x; x < nx; x += blockDim.x) {
            const double* const at = plan.from + start + x;
            const double sum = at[-1] + at[1] + *(at - row) + at[row] + *(at - plane) + at[plane];
            plan.to[start + x] = sum * (1.0 / 6.0);
        }
    }
}
