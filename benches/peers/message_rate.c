/* Short messages in windows, one way: messages per second. */
#include "window.h"

int main(int argc, char **argv)
{
    struct options o;
    bench_init(&argc, &argv);
    parse_options(&o, argc, argv, "8");
    if (bench_ranks != 2)
        die("message-rate", "needs two ranks");
    for (int i = 0; i < o.n_sizes; i++) {
        double t = window_measure(&o, o.sizes[i], 0);
        print_value(&o, "message-rate", o.sizes[i], "msg/s", o.window / t);
    }
    MPI_Finalize();
    return 0;
}
