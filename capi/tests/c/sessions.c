/* A program of sessions alone, twice in one process. */
#include "check.h"

int main(void) {
    for (int round = 0; round < 2; round++) {
        MPI_Session session;
        MPI_Group group;
        MPI_Comm comm;
        int sum, one = 1, n;
        OK(MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_RETURN, &session));
        OK(MPI_Group_from_session_pset(session, "mpi://WORLD", &group));
        OK(MPI_Comm_create_from_group(group, "t", MPI_INFO_NULL, MPI_ERRORS_RETURN, &comm));
        OK(MPI_Comm_size(comm, &n));
        OK(MPI_Comm_rank(comm, &rank));
        OK(MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, comm));
        CHECK(sum == n);
        OK(MPI_Comm_free(&comm));
        OK(MPI_Group_free(&group));
        OK(MPI_Session_finalize(&session));
    }
    if (rank == 0) printf("through\n");
    return 0;
}
