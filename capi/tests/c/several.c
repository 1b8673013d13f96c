/* One of several programs in a job: its arguments say what it must find. */
#include "check.h"

int main(int argc, char **argv) {
    int *number, found, number_here, sum;
    begin(&argc, &argv);
    CHECK(argc == 4);
    const char *value = getenv("WHOSE");
    OK(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_APPNUM, &number, &found));
    CHECK(found && *number == atoi(argv[1]));
    CHECK(size == atoi(argv[2]));
    CHECK(strcmp(value ? value : "nobody's", argv[3]) == 0);
    number_here = *number;
    OK(MPI_Allreduce(&number_here, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
    CHECK(sum == size - 1);
    return end();
}
