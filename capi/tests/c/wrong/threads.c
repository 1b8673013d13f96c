/* Threads that MPI was not initialised for. */
#include "wrong.h"
#include <pthread.h>

static int level;

static void *send_to_itself(void *nothing)
{
    int value = 1, got = 0;
    MPI_Sendrecv(&value, 1, MPI_INT, 0, 0, &got, 1, MPI_INT, 0, 0, MPI_COMM_SELF,
                 MPI_STATUS_IGNORE);
    return nothing;
}

static void in_a_thread(int asked)
{
    pthread_t thread;
    MPI_Init_thread(NULL, NULL, asked, &level);
    pthread_create(&thread, NULL, send_to_itself, NULL);
    pthread_join(thread, NULL);
    MPI_Finalize();
}

CASE_ALONE(single, 1, "a second thread makes a call after MPI_Init", "threads",
           "and MPI was initialised with MPI_THREAD_SINGLE")
{
    in_a_thread(wrong ? MPI_THREAD_SINGLE : MPI_THREAD_MULTIPLE);
}

CASE_ALONE(funneled, 1, "a second thread makes a call under MPI_THREAD_FUNNELED", "threads",
           "a thread that is not the main one makes a call")
{
    in_a_thread(wrong ? MPI_THREAD_FUNNELED : MPI_THREAD_SERIALIZED);
}

static void *receive_here(void *nothing)
{
    int got = 0;
    MPI_Recv(&got, 1, MPI_INT, 0, 5, MPI_COMM_SELF, MPI_STATUS_IGNORE);
    return nothing;
}

CASE_ALONE(serialized, 1, "two threads are in calls at the same time under "
                          "MPI_THREAD_SERIALIZED", "threads",
           "two threads are in calls at the same time")
{
    pthread_t thread;
    int value = 1;
    MPI_Init_thread(NULL, NULL, wrong ? MPI_THREAD_SERIALIZED : MPI_THREAD_MULTIPLE, &level);
    pthread_create(&thread, NULL, receive_here, NULL);
    /* It ends when it has the message, so that both are in calls until then. */
    for (int i = 0; i < 200; i++) {
        send_to_itself(NULL);
        usleep(1000);
    }
    MPI_Send(&value, 1, MPI_INT, 0, 5, MPI_COMM_SELF);
    pthread_join(thread, NULL);
    MPI_Finalize();
}

static MPI_Comm duplicate;

static void *receive_on_duplicate(void *nothing)
{
    int got = 0;
    MPI_Recv(&got, 1, MPI_INT, 1, 5, duplicate, MPI_STATUS_IGNORE);
    return nothing;
}

CASE_ALONE(freed_in_use, 2, "a communicator is freed while another thread receives on it",
           "threads", "a communicator is freed while another thread makes a call on it")
{
    pthread_t thread;
    int rank, value = 1;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_dup(MPI_COMM_WORLD, &duplicate);
    if (rank == 0) {
        pthread_create(&thread, NULL, receive_on_duplicate, NULL);
        if (!wrong)
            pthread_join(thread, NULL);
        usleep(200000);
        MPI_Comm_free(&duplicate);
        MPI_Barrier(MPI_COMM_WORLD);
        if (wrong)
            pthread_join(thread, NULL);
    } else {
        if (wrong)
            MPI_Barrier(MPI_COMM_WORLD);
        MPI_Send(&value, 1, MPI_INT, 0, 5, duplicate);
        if (!wrong)
            MPI_Barrier(MPI_COMM_WORLD);
        MPI_Comm_free(&duplicate);
    }
    MPI_Finalize();
}

static void *finalize(void *nothing)
{
    MPI_Finalize();
    return nothing;
}

CASE_ALONE(other_finalizes, 1, "a thread that did not initialise MPI finalizes it", "threads",
           "MPI_Finalize on a thread that is not the main one")
{
    pthread_t thread;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
    if (wrong) {
        pthread_create(&thread, NULL, finalize, NULL);
        pthread_join(thread, NULL);
    } else {
        MPI_Finalize();
    }
}

static void *sleep_long(void *nothing)
{
    pause();
    return nothing;
}

CASE_ALONE(threads_of_program, 1, "the process has threads, and MPI was told that it has none",
           "threads", "threads, and MPI was initialised with MPI_THREAD_SINGLE")
{
    pthread_t thread;
    MPI_Init_thread(NULL, NULL, wrong ? MPI_THREAD_SINGLE : MPI_THREAD_FUNNELED, &level);
    pthread_create(&thread, NULL, sleep_long, NULL);
    MPI_Finalize();
}

static int copies_attribute, is_freed;

/* A copy function that makes a call of its own, and lets the main thread free the communicator. */
static int copy_attribute(MPI_Comm comm, int key, void *extra, void *value, void *copy, int *flag)
{
    int bytes;
    (void)comm, (void)key, (void)extra, (void)value, (void)copy;
    MPI_Type_size(MPI_INT, &bytes);
    __atomic_store_n(&copies_attribute, 1, __ATOMIC_RELEASE);
    while (wrong && !__atomic_load_n(&is_freed, __ATOMIC_ACQUIRE))
        usleep(1000);
    *flag = 0;
    return MPI_SUCCESS;
}

static void *duplicate_again(void *nothing)
{
    MPI_Comm made;
    MPI_Comm_dup(duplicate, &made);
    MPI_Comm_free(&made);
    return nothing;
}

CASE_ALONE(freed_in_callback, 1,
           "a communicator is freed while another thread's copy function of it runs", "threads",
           "a communicator is freed while another thread makes a call on it")
{
    pthread_t thread;
    int key;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_dup(MPI_COMM_SELF, &duplicate);
    MPI_Comm_create_keyval(copy_attribute, MPI_COMM_NULL_DELETE_FN, &key, NULL);
    MPI_Comm_set_attr(duplicate, key, &key);
    pthread_create(&thread, NULL, duplicate_again, NULL);
    if (!wrong)
        pthread_join(thread, NULL);
    while (!__atomic_load_n(&copies_attribute, __ATOMIC_ACQUIRE))
        usleep(1000);
    MPI_Comm_free(&duplicate);
    __atomic_store_n(&is_freed, 1, __ATOMIC_RELEASE);
    if (wrong)
        pthread_join(thread, NULL);
    MPI_Comm_free_keyval(&key);
    MPI_Finalize();
}
