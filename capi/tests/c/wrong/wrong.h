/* Wrong programs, each beside its correct twin: `program list` prints the table, and
 * `program NAME wrong` or `program NAME right` runs one. */
#ifndef WRONG_H
#define WRONG_H

#include <mpi.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Whether the error is made, in place of what is right. */
static int wrong;
static int rank, size;

struct wrong_case {
    const char *name;
    int ranks;
    /* What the program does that it must not. */
    const char *what;
    /* What finds it: a check, "error", "hang", "death" or "silent". */
    const char *by;
    /* Part of the message; of a silent one the reason why nobody can see it. */
    const char *says;
    void (*run)(void);
    /* Whether it calls MPI_Init and MPI_Finalize itself. */
    int alone;
};

static struct wrong_case wrong_cases[64];
static int wrong_count;

#define WRONG_CASE(name, ranks, what, by, says, alone)                                    \
    static void name(void);                                                              \
    __attribute__((constructor)) static void add_##name(void)                            \
    {                                                                                    \
        struct wrong_case add = {#name, ranks, what, by, says, name, alone};             \
        wrong_cases[wrong_count++] = add;                                                \
    }                                                                                    \
    static void name(void)

/* A case between MPI_Init and MPI_Finalize. */
#define CASE(name, ranks, what, by, says) WRONG_CASE(name, ranks, what, by, says, 0)
/* A case that initialises and finalises itself. */
#define CASE_ALONE(name, ranks, what, by, says) WRONG_CASE(name, ranks, what, by, says, 1)

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "list") == 0) {
        for (int i = 0; i < wrong_count; i++) {
            struct wrong_case *c = &wrong_cases[i];
            printf("%s\t%d\t%s\t%s\t%s\n", c->name, c->ranks, c->what, c->by, c->says);
        }
        return 0;
    }
    if (argc != 3)
        return 2;
    wrong = strcmp(argv[2], "wrong") == 0;
    for (int i = 0; i < wrong_count; i++) {
        struct wrong_case *c = &wrong_cases[i];
        if (strcmp(argv[1], c->name) != 0)
            continue;
        if (c->alone) {
            c->run();
            return 0;
        }
        MPI_Init(NULL, NULL);
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        MPI_Comm_size(MPI_COMM_WORLD, &size);
        c->run();
        MPI_Finalize();
        return 0;
    }
    return 2;
}

#endif
