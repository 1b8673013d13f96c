/* Rank 0 has standing receives; the others finalize at different moments, and live on until
 * rank 0 has looked. Or rank 1 exits with code 0 and does not finalize. */
#include "check.h"
#include <sched.h>
#include <time.h>
#include <unistd.h>

static const char *flags;

/* A file that says so. */
static void raise_flag(const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s.%s", flags, name);
    FILE *file = fopen(path, "w");
    if (file) fclose(file);
}

static int is_raised(const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s.%s", flags, name);
    return access(path, F_OK) == 0;
}

static void await(const char *name) {
    time_t end = time(NULL) + 100;
    while (!is_raised(name)) {
        if (time(NULL) >= end) {
            fprintf(stderr, "nobody has raised the flag %s in 100 s\n", name);
            exit(9);
        }
        sched_yield();
    }
}

enum { STANDING = 4 };

static void look(MPI_Request *standing) {
    int flag, n, at[STANDING];
    MPI_Status statuses[STANDING];
    OK(MPI_Testsome(STANDING, standing, &n, at, statuses));
    CHECK(n == 0);
    OK(MPI_Testany(STANDING, standing, at, &flag, statuses));
    CHECK(!flag);
    OK(MPI_Testall(STANDING, standing, &flag, statuses));
    CHECK(!flag);
    for (int i = 0; i < STANDING; i++) {
        OK(MPI_Test(&standing[i], &flag, MPI_STATUS_IGNORE));
        CHECK(!flag);
        OK(MPI_Request_get_status(standing[i], &flag, MPI_STATUS_IGNORE));
        CHECK(!flag);
    }
    int sources[] = {1, 2, MPI_ANY_SOURCE};
    for (int i = 0; i < 3; i++) {
        MPI_Message message;
        OK(MPI_Iprobe(sources[i], MPI_ANY_TAG, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE));
        CHECK(!flag);
        OK(MPI_Improbe(sources[i], 1, MPI_COMM_WORLD, &flag, &message, MPI_STATUS_IGNORE));
        CHECK(!flag);
    }
}

static void says(int code, const char *what) {
    char text[MPI_MAX_ERROR_STRING];
    int length;
    OK(MPI_Error_string(code, text, &length));
    if (!strstr(text, what)) {
        fprintf(stderr, "%s is missing: %s\n", what, text);
        MPI_Abort(MPI_COMM_WORLD, 3);
    }
}

int main(int argc, char **argv) {
    begin(&argc, &argv);
    CHECK(argc == 3 && size == 3);
    flags = argv[2];
    int exits = strcmp(argv[1], "exit") == 0, buffers[STANDING], code, at;
    if (rank != 0) {
        if (exits && rank == 1) exit(0);
        if (rank == 2) await("1");
        OK(MPI_Finalize());
        raise_flag(rank == 1 ? "1" : "2");
        await("go");
        return 0;
    }
    MPI_Request standing[STANDING];
    int sources[STANDING] = {1, 2, MPI_ANY_SOURCE, 1};
    for (int i = 0; i < STANDING - 1; i++)
        OK(MPI_Irecv(&buffers[i], 1, MPI_INT, sources[i], 5, MPI_COMM_WORLD, &standing[i]));
    OK(MPI_Recv_init(&buffers[3], 1, MPI_INT, 1, 6, MPI_COMM_WORLD, &standing[3]));
    OK(MPI_Start(&standing[3]));
    if (exits) {
        int flag = 0;
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
        do code = MPI_Test(&standing[0], &flag, MPI_STATUS_IGNORE);
        while (code == MPI_SUCCESS && !flag);
        FAILS(code, MPI_ERR_PROC_ABORTED);
        says(code, "rank 1 exited with code 0 without finalizing");
        FAILS(MPI_Recv(buffers, 1, MPI_INT, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE),
              MPI_ERR_PROC_ABORTED);
        OK(MPI_Cancel(&standing[1]));
        OK(MPI_Wait(&standing[1], MPI_STATUS_IGNORE));
        raise_flag("1");
        raise_flag("go");
        printf("through\n");
        OK(MPI_Finalize());
        return 0;
    }
    /* All errors end the job up to here. */
    while (!is_raised("1")) look(standing);
    while (!is_raised("2")) look(standing);
    for (int i = 0; i < 3000; i++) look(standing);
    /* Nobody is left: what blocks ends, and names them. */
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    code = MPI_Recv(buffers, 1, MPI_INT, 1, 9, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    says(code, "rank 1 has finalized");
    code = MPI_Probe(MPI_ANY_SOURCE, 9, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    says(code, "rank 1 has finalized");
    says(code, "rank 2 has finalized");
    MPI_Request more;
    OK(MPI_Irecv(buffers, 1, MPI_INT, 2, 9, MPI_COMM_WORLD, &more));
    code = MPI_Wait(&more, MPI_STATUS_IGNORE);
    says(code, "rank 2 has finalized");
    OK(MPI_Irecv(buffers, 1, MPI_INT, 2, 9, MPI_COMM_WORLD, &more));
    code = MPI_Waitany(1, &more, &at, MPI_STATUS_IGNORE);
    says(code, "rank 2 has finalized");
    look(standing);
    for (int i = 0; i < STANDING; i++) {
        MPI_Status status;
        int cancelled;
        OK(MPI_Cancel(&standing[i]));
        OK(MPI_Wait(&standing[i], &status));
        OK(MPI_Test_cancelled(&status, &cancelled));
        CHECK(cancelled);
    }
    OK(MPI_Request_free(&standing[3]));
    raise_flag("go");
    printf("through\n");
    OK(MPI_Finalize());
    return 0;
}
