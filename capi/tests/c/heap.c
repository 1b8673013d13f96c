/* Allocations of an unmodified program in the shared heap. */
#define _GNU_SOURCE
#include "check.h"
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <spawn.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* Whether an address lies in a mapping of the job's heap. */
static int is_shared(const void *p) {
    char line[512];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps)) {
        unsigned long start, end;
        if (sscanf(line, "%lx-%lx", &start, &end) == 2 && start <= (uintptr_t)p &&
            (uintptr_t)p < end)
            found = strstr(line, "osier-heap") != NULL;
    }
    fclose(maps);
    return found;
}

static int all(const unsigned char *p, size_t n, int value) {
    for (size_t i = 0; i < n; i++)
        if (p[i] != value) return 0;
    return 1;
}

static void *worker(void *number) {
    void *held[16] = {0};
    size_t bytes[16] = {0};
    int value = 1 + (int)(intptr_t)number;
    for (int i = 0; i < 1500; i++) {
        int k = i % 16;
        if (held[k] && !all(held[k], bytes[k], value)) return "written over";
        bytes[k] = (size_t)i * 7919 % 200000 + 1;
        if (i % 3 == 0) {
            held[k] = realloc(held[k], bytes[k]);
        } else {
            free(held[k]);
            held[k] = i % 2 ? malloc(bytes[k]) : calloc(bytes[k], 1);
        }
        memset(held[k], value, bytes[k]);
    }
    for (int k = 0; k < 16; k++) free(held[k]);
    return NULL;
}

static int ends_well(pid_t pid) {
    int status = 0;
    return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "child")) {
        /* No rank: all of its memory is its own. */
        char *p = malloc(1 << 20);
        memset(p, 1, 1 << 20);
        return is_shared(p);
    }
    int wanted = argc > 1 && !strcmp(argv[1], "all");
    unsigned char *early = malloc(100000);
    memset(early, 1, 100000);
    begin(&argc, &argv);
    unsigned char *small = malloc(16383), *large = malloc(16384), *moved, *p;
    CHECK(!is_shared(early) && !is_shared(small) && is_shared(large) == wanted);
    free(small);

    /* The kin of malloc. */
    CHECK(malloc_usable_size(large) >= 16384);
    memset(large, 2, 16384);
    large = realloc(large, 3000000);
    CHECK(all(large, 16384, 2) && is_shared(large) == wanted);
    memset(large, 2, 3000000);
    p = malloc(20000);
    large = realloc(large, 9000000);
    CHECK(all(large, 3000000, 2));
    large = realloc(large, 100);
    CHECK(all(large, 100, 2) && !is_shared(large));
    large = realloc(large, 30000);
    CHECK(all(large, 100, 2) && is_shared(large) == wanted);
    free(p);
    moved = realloc(early, 300000);
    CHECK(all(moved, 100000, 1));
    free(moved);
    for (int i = 0; i < 3; i++) {
        p = calloc(3, 1000000);
        CHECK(all(p, 3000000, 0) && is_shared(p) == wanted);
        memset(p, 9, 3000000);
        free(p);
    }
    for (size_t align = 8; align <= 4 << 20; align *= 2) {
        void *q = NULL;
        CHECK(posix_memalign(&q, align, 40000) == 0 && (uintptr_t)q % align == 0);
        CHECK(is_shared(q) == wanted);
        memset(q, 1, 40000);
        free(q);
        q = aligned_alloc(align, 4 << 20);
        CHECK(q && (uintptr_t)q % align == 0);
        free(q);
        q = memalign(align, 20000);
        CHECK(q && (uintptr_t)q % align == 0);
        free(q);
    }
    void *q = NULL;
    CHECK(posix_memalign(&q, 24, 40000) == EINVAL);
    volatile size_t huge = SIZE_MAX / 2;
    errno = 0;
    CHECK(!malloc(huge) && errno == ENOMEM && !calloc(huge, 4) && !realloc(NULL, huge));
    free(realloc(malloc(50000), 0));

    /* Peers read it. */
    int next = (rank + 1) % size, before = (rank + size - 1) % size;
    p = malloc(1000000);
    unsigned char *theirs = malloc(1000000);
    memset(p, 10 + rank, 1000000);
    OK(MPI_Sendrecv(p, 1000000, MPI_CHAR, next, 0, theirs, 1000000, MPI_CHAR, before, 0,
                    MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    CHECK(all(theirs, 1000000, 10 + before));

    pthread_t threads[3];
    for (intptr_t i = 0; i < 3; i++)
        CHECK(!pthread_create(&threads[i], NULL, worker, (void *)i));
    for (int i = 0; i < 3; i++) {
        void *wrong;
        CHECK(!pthread_join(threads[i], &wrong) && !wrong);
    }

    /* A forked child has its own. */
    memset(p, 3, 1000000);
    int told[2];
    CHECK(!pipe(told));
    pid_t pid = fork();
    if (pid == 0) {
        char c;
        if (read(told[0], &c, 1) != 1 || !all(p, 1000000, 3)) _exit(1);
        memset(p, 4, 1000000);
        p = realloc(p, 2000000);
        unsigned char *own = malloc(1 << 20);
        if (!all(p, 1000000, 4) || is_shared(p) || is_shared(own)) _exit(2);
        memset(own, 7, 1 << 20);
        if (!all(p, 1000000, 4)) _exit(3);
        free(p);
        free(own);
        free(theirs);
        _exit(0);
    }
    memset(p, 5, 1000000);
    CHECK(write(told[1], "x", 1) == 1);
    CHECK(ends_well(pid));
    CHECK(all(p, 1000000, 5) && all(theirs, 1000000, 10 + before));
    pid = vfork();
    if (pid == 0) _exit(!p[0]);
    CHECK(ends_well(pid));
    char *arguments[] = {argv[0], "child", NULL};
    CHECK(!posix_spawn(&pid, "/proc/self/exe", NULL, NULL, arguments, environ));
    CHECK(ends_well(pid));
    CHECK(system("true") == 0);

    /* Limits hold. */
    struct rlimit old, limit;
    CHECK(!getrlimit(RLIMIT_DATA, &old));
    limit = old;
    limit.rlim_cur = 64 << 20;
    CHECK(!setrlimit(RLIMIT_DATA, &limit));
    CHECK(!malloc(256 << 20));
    CHECK(!setrlimit(RLIMIT_DATA, &old));
    CHECK(!getrlimit(RLIMIT_AS, &old));
    limit = old;
    limit.rlim_cur = 1;
    CHECK(!setrlimit(RLIMIT_AS, &limit));
    CHECK(!malloc((size_t)1 << 30));
    CHECK(!setrlimit(RLIMIT_AS, &old));

    OK(MPI_Barrier(MPI_COMM_WORLD));
    if (rank == 0) printf("through\n");
    OK(MPI_Finalize());
    CHECK(all(p, 1000000, 5));
    free(p);
    free(large);
    p = malloc(1 << 20);
    CHECK(!is_shared(p));
    free(p);
    return 0;
}
