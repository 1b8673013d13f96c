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

        /* A buffer of the session's is that of what stems from its groups. */
        static char room[256];
        MPI_Group part;
        MPI_Comm other, dup;
        char *back;
        int other_rank, twice[] = {0};
        OK(MPI_Comm_rank(comm, &rank));
        FAILS(MPI_Bsend(&one, 1, MPI_INT, rank, 3, comm), MPI_ERR_BUFFER);
        OK(MPI_Session_attach_buffer(session, room, sizeof room));
        OK(MPI_Comm_dup(comm, &dup));
        OK(MPI_Comm_group(dup, &part));
        OK(MPI_Group_free(&group));
        twice[0] = rank;
        OK(MPI_Group_incl(part, 1, twice, &group));
        OK(MPI_Comm_create_from_group(group, "u", MPI_INFO_NULL, MPI_ERRORS_RETURN, &other));
        OK(MPI_Comm_rank(other, &other_rank));
        OK(MPI_Bsend(&one, 1, MPI_INT, rank, 3, comm));
        OK(MPI_Bsend(&one, 1, MPI_INT, rank, 3, dup));
        OK(MPI_Bsend(&one, 1, MPI_INT, other_rank, 3, other));
        OK(MPI_Recv(&sum, 1, MPI_INT, rank, 3, comm, MPI_STATUS_IGNORE));
        OK(MPI_Recv(&sum, 1, MPI_INT, rank, 3, dup, MPI_STATUS_IGNORE));
        OK(MPI_Recv(&sum, 1, MPI_INT, other_rank, 3, other, MPI_STATUS_IGNORE));
        OK(MPI_Session_detach_buffer(session, &back, &n));
        CHECK(back == room && n == sizeof room);
        FAILS(MPI_Bsend(&one, 1, MPI_INT, other_rank, 3, other), MPI_ERR_BUFFER);
        OK(MPI_Comm_free(&other));
        OK(MPI_Comm_free(&dup));
        OK(MPI_Group_free(&part));
        OK(MPI_Comm_free(&comm));
        OK(MPI_Group_free(&group));
        OK(MPI_Session_finalize(&session));
    }
    if (rank == 0) printf("through\n");
    return 0;
}
