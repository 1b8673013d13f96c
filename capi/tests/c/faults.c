/* The last rank dies; the others revoke, agree, and go on without it, by the names of mpi-ext.h. */
#include "check.h"
#include <mpi-ext.h>
#include <signal.h>

static int size_of(MPI_Group group) {
    int members;
    OK(MPI_Group_size(group, &members));
    if (group != MPI_GROUP_EMPTY) OK(MPI_Group_free(&group));
    return members;
}

static int sum_over(MPI_Comm comm) {
    int one = 1, sum = 0;
    OK(MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, comm));
    return sum;
}

int main(int argc, char **argv) {
    begin(&argc, &argv);
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    int flag = 0, acked = -1, class = 0, length = 0;
    MPI_Comm comm, living, smaller;
    MPI_Group group;
    MPI_Request requests[2];
    char text[MPI_MAX_ERROR_STRING];
    OK(MPI_Comm_dup(MPI_COMM_WORLD, &comm));
    OK(MPIX_Comm_is_revoked(comm, &flag));
    CHECK(flag == 0);
    flag = rank == 0 ? 5 : 7;
    OK(MPIX_Comm_agree(comm, &flag));
    CHECK(flag == 5);
    if (rank == size - 1) raise(SIGKILL);

    /* No rank sends: the failure ends it, or another rank that has seen that. */
    int none, code = MPI_Recv(&none, 1, MPI_INT, rank == 0 ? size - 1 : 0, 3, comm, MPI_STATUS_IGNORE);
    OK(MPI_Error_class(code, &class));
    CHECK(class == MPIX_ERR_PROC_FAILED || class == MPIX_ERR_REVOKED);
    OK(MPIX_Comm_revoke(comm));
    OK(MPIX_Comm_is_revoked(comm, &flag));
    CHECK(flag == 1);
    FAILS(MPI_Barrier(comm), MPIX_ERR_REVOKED);
    FAILS(MPI_Send(&none, 1, MPI_INT, 0, 3, comm), MPIX_ERR_REVOKED);
    OK(MPI_Error_string(MPIX_ERR_REVOKED, text, &length));
    CHECK(strstr(text, "MPIX_ERR_REVOKED") != NULL);

    /* Until all have acknowledged the failure, agreements say that it is there. */
    flag = 6 | 1 << rank;
    FAILS(MPIX_Comm_agree(comm, &flag), MPIX_ERR_PROC_FAILED);
    CHECK((flag & 6) == 6);
    do {
        OK(MPIX_Comm_get_failed(comm, &group));
    } while (size_of(group) == 0);
    OK(MPIX_Comm_failure_get_acked(comm, &group));
    CHECK(size_of(group) == 0);
    OK(MPIX_Comm_ack_failed(comm, 0, &acked));
    CHECK(acked == 0);
    OK(MPIX_Comm_ack_failed(comm, 1, &acked));
    CHECK(acked == 1);
    OK(MPIX_Comm_failure_ack(comm));
    OK(MPIX_Comm_failure_get_acked(comm, &group));
    CHECK(size_of(group) == 1);
    flag = ~(1 << rank);
    OK(MPIX_Comm_iagree(comm, &flag, &requests[0]));
    OK(MPIX_Comm_ishrink(comm, &smaller, &requests[1]));
    OK(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE));
    for (int at = 0; at < size - 1; at++) CHECK((flag & 1 << at) == 0);
    OK(MPIX_Comm_shrink(comm, &living));
    int members, place;
    OK(MPI_Comm_size(living, &members));
    OK(MPI_Comm_rank(living, &place));
    CHECK(members == size - 1 && place == rank);
    CHECK(sum_over(living) == size - 1 && sum_over(smaller) == size - 1);
    CHECK(MPIX_Query_cuda_support() == 0 || MPIX_Query_cuda_support() == 1);
    OK(MPI_Barrier(living));
    OK(MPI_Comm_free(&smaller));
    OK(MPI_Comm_free(&living));
    OK(MPI_Comm_free(&comm));
    if (rank == 0) {
        puts("through");
        fflush(stdout);
    }
    OK(MPI_Finalize());
    return 0;
}
