/* Calls outside of their time: argv[1] says which. What ends the job says why. */
#include "check.h"

static void always(void) {
    int flag, n;
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    MPI_Info info;
    MPI_Errhandler handler;
    OK(MPI_Initialized(&flag));
    OK(MPI_Finalized(&flag));
    OK(MPI_Get_version(&n, &n));
    OK(MPI_Abi_get_version(&n, &n));
    OK(MPI_Get_library_version(text, &n));
    OK(MPI_Error_class(MPI_ERR_TRUNCATE, &n));
    CHECK(n == MPI_ERR_TRUNCATE);
    OK(MPI_Error_string(MPI_ERR_TRUNCATE, text, &n));
    OK(MPI_Info_create(&info));
    OK(MPI_Info_set(info, "a", "b"));
    OK(MPI_Info_get_nkeys(info, &n));
    CHECK(n == 1);
    OK(MPI_Info_free(&info));
    OK(MPI_Session_create_errhandler((MPI_Session_errhandler_function *)abort, &handler));
    OK(MPI_Errhandler_free(&handler));
    CHECK(MPI_Wtime() > 0);
    CHECK(MPI_Comm_toint(MPI_COMM_WORLD) == 0x101);
}

int main(int argc, char **argv) {
    int n = 0;
    MPI_Request request = MPI_REQUEST_NULL;
    CHECK(argc == 2);
    if (!strcmp(argv[1], "rank-before")) MPI_Comm_rank(MPI_COMM_WORLD, &n);
    if (!strcmp(argv[1], "send-before")) MPI_Send(&n, 1, MPI_INT, 0, 0, MPI_COMM_WORLD);
    if (!strcmp(argv[1], "finalize-before")) MPI_Finalize();
    if (!strcmp(argv[1], "null-before")) MPI_Barrier(MPI_COMM_NULL);
    always();
    begin(&argc, &argv);
    always();
    /* What was asked for. */
    OK(MPI_Query_thread(&n));
    CHECK(n == MPI_THREAD_SINGLE);
    n = 0;
    if (!strcmp(argv[1], "init-twice")) MPI_Init(&argc, &argv);
    if (!strcmp(argv[1], "left-pending")) {
        /* Nobody waits for a receive that is left, and what it was meant for is not written. */
        OK(MPI_Irecv(&n, 1, MPI_INT, rank, 7, MPI_COMM_WORLD, &request));
    }
    OK(MPI_Finalize());
    always();
    if (!strcmp(argv[1], "rank-after")) MPI_Comm_rank(MPI_COMM_WORLD, &n);
    if (!strcmp(argv[1], "send-after")) MPI_Send(&n, 1, MPI_INT, 0, 0, MPI_COMM_WORLD);
    if (!strcmp(argv[1], "wait-after")) MPI_Recv(&n, 1, MPI_INT, 0, 0, MPI_COMM_SELF, MPI_STATUS_IGNORE);
    if (!strcmp(argv[1], "finalize-twice")) MPI_Finalize();
    if (!strcmp(argv[1], "init-again")) MPI_Init(NULL, NULL);
    printf("through\n");
    return 0;
}
