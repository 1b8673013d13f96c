/* One way: a window of sends, then one short answer. In MB/s (10^6). */
#include "window.h"

int main(int argc, char **argv)
{
    struct options o;
    bench_init(&argc, &argv);
    parse_options(&o, argc, argv, "1M,4M");
    if (bench_ranks != 2)
        die("bandwidth", "needs two ranks");
    for (int i = 0; i < o.n_sizes; i++) {
        double t = window_measure(&o, o.sizes[i], 0);
        print_value(&o, "bandwidth", o.sizes[i], "MB/s", 1e-6 * (double)o.sizes[i] * o.window / t);
    }
    MPI_Finalize();
    return 0;
}
