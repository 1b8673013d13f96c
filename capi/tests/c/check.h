/* What the programs of the tests share. */
#ifndef CHECK_H
#define CHECK_H

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                 \
    do {                                                                                 \
        if (!(condition)) {                                                              \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);      \
            MPI_Abort(MPI_COMM_WORLD, 3);                                                \
        }                                                                                \
    } while (0)

#define OK(call) CHECK((call) == MPI_SUCCESS)

/* That a call fails with this class. */
#define FAILS(call, class)                                                               \
    do {                                                                                 \
        int code_ = (call), class_ = -1;                                                 \
        MPI_Error_class(code_, &class_);                                                 \
        if (class_ != (class)) {                                                         \
            fprintf(stderr, "%s:%d: class %d: %s\n", __FILE__, __LINE__, class_, #call); \
            MPI_Abort(MPI_COMM_WORLD, 3);                                                \
        }                                                                                \
    } while (0)

static int rank, size;

static inline void begin(int *argc, char ***argv) {
    OK(MPI_Init(argc, argv));
    OK(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    OK(MPI_Comm_size(MPI_COMM_WORLD, &size));
}

static inline int end(void) {
    OK(MPI_Barrier(MPI_COMM_WORLD));
    if (rank == 0) printf("through\n");
    OK(MPI_Finalize());
    return 0;
}

#endif
