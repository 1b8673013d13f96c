/* MPI_THREAD_MULTIPLE: threads that send and receive at the same time, on one communicator
 * and on one each; that wait for each other's requests; that make objects. */
#include "check.h"
#include <pthread.h>

#define THREADS 4
#define ROUNDS 60

static MPI_Comm comms[THREADS];
static pthread_barrier_t meet;

/* Each thread has its tag. */
static void *one_communicator(void *argument) {
    int me = (int)(intptr_t)argument, peer = (rank + 1) % size, from = (rank + size - 1) % size;
    static int big[THREADS][2][5000];
    for (int round = 0; round < ROUNDS; round++) {
        int n = round % 10 ? 1 + round : 5000, *out = big[me][0], *in = big[me][1];
        MPI_Request requests[2];
        MPI_Status status;
        for (int i = 0; i < n; i++) out[i] = 1000 * rank + 100 * me + round + i;
        OK(MPI_Irecv(in, 5000, MPI_INT, from, me, MPI_COMM_WORLD, &requests[0]));
        OK(MPI_Isend(out, n, MPI_INT, peer, me, MPI_COMM_WORLD, &requests[1]));
        OK(MPI_Wait(&requests[0], &status));
        OK(MPI_Wait(&requests[1], MPI_STATUS_IGNORE));
        int count;
        OK(MPI_Get_count(&status, MPI_INT, &count));
        CHECK(count == n);
        for (int i = 0; i < n; i++) CHECK(in[i] == 1000 * from + 100 * me + round + i);
    }
    return NULL;
}

/* Collectives and blocking messages of any tag, each thread on its own. */
static void *own_communicator(void *argument) {
    int me = (int)(intptr_t)argument, peer = (rank + 1) % size;
    for (int round = 0; round < ROUNDS; round++) {
        int mine = rank + me + round, sum, got;
        MPI_Status status;
        OK(MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, comms[me]));
        CHECK(sum == size * (me + round) + size * (size - 1) / 2);
        OK(MPI_Sendrecv(&mine, 1, MPI_INT, peer, round, &got, 1, MPI_INT, MPI_ANY_SOURCE,
                        MPI_ANY_TAG, comms[me], &status));
        CHECK(got == status.MPI_SOURCE + me + round && status.MPI_TAG == round);
        if (round % 8 == 0) OK(MPI_Barrier(comms[me]));
    }
    return NULL;
}

/* A thread begins what the next one ends. */
static MPI_Request handed[THREADS][2];
static int given[THREADS], taken[THREADS];

static void *hands_over(void *argument) {
    int me = (int)(intptr_t)argument, next = (me + 1) % THREADS;
    int peer = (rank + 1) % size, from = (rank + size - 1) % size;
    for (int round = 0; round < ROUNDS; round++) {
        given[me] = 10000 * rank + 100 * me + round;
        OK(MPI_Irecv(&taken[me], 1, MPI_INT, from, me, MPI_COMM_WORLD, &handed[me][0]));
        OK(MPI_Isend(&given[me], 1, MPI_INT, peer, me, MPI_COMM_WORLD, &handed[me][1]));
        pthread_barrier_wait(&meet);
        OK(MPI_Waitall(2, handed[next], MPI_STATUSES_IGNORE));
        CHECK(taken[next] == 10000 * from + 100 * next + round);
        CHECK(handed[next][0] == MPI_REQUEST_NULL);
        pthread_barrier_wait(&meet);
    }
    return NULL;
}

static void *objects(void *argument) {
    int me = (int)(intptr_t)argument;
    for (int round = 0; round < 2000; round++) {
        MPI_Datatype type;
        MPI_Info info;
        MPI_Group group;
        int n;
        OK(MPI_Type_vector(2, 1 + me, 8, MPI_INT, &type));
        OK(MPI_Type_commit(&type));
        OK(MPI_Type_size(type, &n));
        CHECK(n == 8 * (1 + me));
        OK(MPI_Comm_group(MPI_COMM_WORLD, &group));
        OK(MPI_Group_size(group, &n));
        CHECK(n == size);
        OK(MPI_Info_create(&info));
        OK(MPI_Info_free(&info));
        OK(MPI_Group_free(&group));
        OK(MPI_Type_free(&type));
    }
    return NULL;
}

/* One thread detaches a buffer that another rank empties late, while others go on. */
static void *detaches(void *argument) {
    (void)argument;
    void *memory;
    int n;
    OK(MPI_Buffer_detach(&memory, &n));
    free(memory);
    return NULL;
}

static void all(void *(*body)(void *)) {
    pthread_t threads[THREADS];
    for (intptr_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, body, (void *)i) == 0);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    OK(MPI_Barrier(MPI_COMM_WORLD));
}

int main(int argc, char **argv) {
    int provided, bytes = 1 << 20;
    pthread_t thread;
    OK(MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided));
    CHECK(provided == MPI_THREAD_MULTIPLE);
    OK(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    OK(MPI_Comm_size(MPI_COMM_WORLD, &size));
    pthread_barrier_init(&meet, NULL, THREADS);
    for (int i = 0; i < THREADS; i++) OK(MPI_Comm_dup(MPI_COMM_WORLD, &comms[i]));
    all(one_communicator);
    all(own_communicator);
    all(hands_over);
    all(objects);

    /* The message that keeps the buffer is received only when rank 0 has sent something
     * more, by calls that need the process's state while a thread waits to detach. */
    int peer = size - 1 - rank, x = 0;
    char *message = calloc(bytes, 1), *room = malloc(bytes + MPI_BSEND_OVERHEAD);
    if (rank == 0 && size > 1) {
        OK(MPI_Buffer_attach(room, bytes + MPI_BSEND_OVERHEAD));
        OK(MPI_Bsend(message, bytes, MPI_CHAR, peer, 1, MPI_COMM_WORLD));
        CHECK(pthread_create(&thread, NULL, detaches, NULL) == 0);
        for (int i = 0; i < 100; i++) {
            int class;
            MPI_Comm own;
            OK(MPI_Add_error_class(&class));
            OK(MPI_Remove_error_class(class));
            OK(MPI_Comm_dup(MPI_COMM_SELF, &own));
            OK(MPI_Comm_free(&own));
        }
        OK(MPI_Send(&x, 1, MPI_INT, peer, 2, MPI_COMM_WORLD));
        CHECK(pthread_join(thread, NULL) == 0);
    } else {
        free(room);
        if (rank == size - 1 && size > 1) {
            OK(MPI_Recv(&x, 1, MPI_INT, 0, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
            OK(MPI_Recv(message, bytes, MPI_CHAR, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        }
    }
    free(message);
    for (int i = 0; i < THREADS; i++) OK(MPI_Comm_free(&comms[i]));
    return end();
}
