/* A ping-pong of UCX between two processes on one GPU: tagged messages of contiguous device
 * memory, half of the round trip. Written against UCX's public interface (UCP); the driver is
 * opened at run time, so that the program is built where there is none.
 *
 *   ucx_messages SIZES FILE [host]
 *
 * SIZES are bytes, separated by commas; FILE gets the records as JSON. With `host` the buffers
 * lie in host memory: to try the program out where there is no GPU.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <ucp/api/ucp.h>

#define MAX_SIZES 64
#define REPETITIONS 7
#define REPETITION 0.01

static int rank, on_host;
static char device_name[256] = "host";

static void die(const char *what, int code)
{
    fprintf(stderr, "ucx_messages: rank %d: %s (%d)\n", rank, what, code);
    exit(1);
}

static void check(const char *what, ucs_status_t status)
{
    if (status != UCS_OK) {
        fprintf(stderr, "ucx_messages: rank %d: %s: %s\n", rank, what, ucs_status_string(status));
        exit(1);
    }
}

/* The driver. */
static int (*cu_init)(unsigned), (*cu_retain)(void **, int), (*cu_set)(void *);
static int (*cu_alloc)(uint64_t *, size_t), (*cu_free)(uint64_t);
static int (*cu_set_bytes)(uint64_t, unsigned char, size_t);
static int (*cu_down)(void *, uint64_t, size_t), (*cu_name)(char *, int, int), (*cu_wait)(void);

static void driver_open(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!library) {
        printf("no CUDA driver: %s\n", dlerror());
        exit(0);
    }
#define LOAD(place, name)                                   \
    if (!(*(void **)&place = dlsym(library, name)))         \
        die("the driver lacks " name, 0)
    LOAD(cu_init, "cuInit");
    LOAD(cu_retain, "cuDevicePrimaryCtxRetain");
    LOAD(cu_set, "cuCtxSetCurrent");
    LOAD(cu_alloc, "cuMemAlloc_v2");
    LOAD(cu_free, "cuMemFree_v2");
    LOAD(cu_set_bytes, "cuMemsetD8_v2");
    LOAD(cu_down, "cuMemcpyDtoH_v2");
    LOAD(cu_name, "cuDeviceGetName");
    LOAD(cu_wait, "cuCtxSynchronize");
    void *context;
    int code = cu_init(0);
    if (code) {
        printf("no GPU: cuInit says %d\n", code);
        exit(0);
    }
    if ((code = cu_retain(&context, 0)) || (code = cu_set(context)))
        die("no context", code);
    cu_name(device_name, sizeof device_name, 0);
}

static void *allocate(size_t bytes, int value)
{
    if (on_host) {
        void *memory = malloc(bytes);
        memset(memory, value, bytes);
        return memory;
    }
    uint64_t address = 0;
    int code = cu_alloc(&address, bytes);
    if (!code)
        code = cu_set_bytes(address, (unsigned char)value, bytes);
    if (!code)
        code = cu_wait();
    if (code)
        die("no device memory", code);
    return (void *)(uintptr_t)address;
}

static void release(void *memory)
{
    if (on_host)
        free(memory);
    else
        cu_free((uint64_t)(uintptr_t)memory);
}

static unsigned char last_byte(const void *memory, size_t bytes)
{
    unsigned char found = 0;
    if (on_host)
        return ((const unsigned char *)memory)[bytes - 1];
    int code = cu_down(&found, (uint64_t)(uintptr_t)memory + bytes - 1, 1);
    if (code)
        die("no byte comes down", code);
    return found;
}

/* The other process, by a socket. */
static int peer;

static void put(const void *from, size_t bytes)
{
    if (write(peer, from, bytes) != (ssize_t)bytes)
        die("the other process is gone", 0);
}

static void get(void *to, size_t bytes)
{
    size_t done = 0;
    while (done < bytes) {
        ssize_t n = read(peer, (char *)to + done, bytes - done);
        if (n <= 0)
            die("the other process is gone", 0);
        done += (size_t)n;
    }
}

static ucp_worker_h worker;
static ucp_ep_h endpoint;

static void finish(void *request)
{
    if (!request)
        return;
    if (UCS_PTR_IS_ERR(request))
        die(ucs_status_string(UCS_PTR_STATUS(request)), 0);
    ucs_status_t status;
    do {
        ucp_worker_progress(worker);
        status = ucp_request_check_status(request);
    } while (status == UCS_INPROGRESS);
    ucp_request_free(request);
    check("a request", status);
}

static ucp_request_param_t parameters(void)
{
    ucp_request_param_t p;
    memset(&p, 0, sizeof p);
    p.op_attr_mask = UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    p.memory_type = on_host ? UCS_MEMORY_TYPE_HOST : UCS_MEMORY_TYPE_CUDA;
    return p;
}

static void ucx_send(const void *from, size_t bytes)
{
    ucp_request_param_t p = parameters();
    finish(ucp_tag_send_nbx(endpoint, from, bytes, 1, &p));
}

static void ucx_receive(void *to, size_t bytes)
{
    ucp_request_param_t p = parameters();
    finish(ucp_tag_recv_nbx(worker, to, bytes, 1, (ucp_tag_t)-1, &p));
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double trips(long n, const void *from, void *to, size_t bytes)
{
    double begin = now();
    for (long i = 0; i < n; i++) {
        if (rank == 0) {
            ucx_send(from, bytes);
            ucx_receive(to, bytes);
        } else {
            ucx_receive(to, bytes);
            ucx_send(from, bytes);
        }
    }
    return (now() - begin) / (double)n / 2;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void connect_both(void)
{
    ucp_params_t params;
    memset(&params, 0, sizeof params);
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_TAG;
    ucp_config_t *config;
    check("configuration", ucp_config_read(NULL, NULL, &config));
    ucp_context_h context;
    check("context", ucp_init(&params, config, &context));
    ucp_config_release(config);
    ucp_worker_params_t of_worker;
    memset(&of_worker, 0, sizeof of_worker);
    of_worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    of_worker.thread_mode = UCS_THREAD_MODE_SINGLE;
    check("worker", ucp_worker_create(context, &of_worker, &worker));
    ucp_address_t *own;
    size_t own_bytes, bytes;
    check("address", ucp_worker_get_address(worker, &own, &own_bytes));
    put(&own_bytes, sizeof own_bytes);
    put(own, own_bytes);
    get(&bytes, sizeof bytes);
    ucp_address_t *theirs = malloc(bytes);
    get(theirs, bytes);
    ucp_ep_params_t of_endpoint;
    memset(&of_endpoint, 0, sizeof of_endpoint);
    of_endpoint.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    of_endpoint.address = theirs;
    check("endpoint", ucp_ep_create(worker, &of_endpoint, &endpoint));
    ucp_worker_release_address(worker, own);
    free(theirs);
}

static void measure(const char *list, const char *file)
{
    FILE *out = NULL;
    int first = 1;
    char beside[4096];
    snprintf(beside, sizeof beside, "%s.new", file);
    if (rank == 0 && !(out = fopen(beside, "w")))
        die("the file cannot be written", 0);
    if (out)
        fprintf(out, "[");
    for (const char *at = list; *at;) {
        char *end;
        size_t bytes = strtoull(at, &end, 10);
        if (end == at || bytes == 0)
            die("not a list of sizes", 0);
        at = *end == ',' ? end + 1 : end;
        void *from = allocate(bytes, 1 + rank), *to = allocate(bytes, 0);
        trips(2, from, to, bytes);
        long n = (long)(REPETITION / (2 * trips(10, from, to, bytes))) + 1;
        if (rank == 0)
            put(&n, sizeof n);
        else
            get(&n, sizeof n);
        double times[REPETITIONS];
        for (int i = 0; i < REPETITIONS; i++)
            times[i] = 1e6 * trips(n, from, to, bytes);
        qsort(times, REPETITIONS, sizeof times[0], ascending);
        if (last_byte(to, bytes) != 2 - rank)
            die("a message arrived with wrong bytes", 0);
        if (out) {
            fprintf(out,
                    "%s\n{\"bench\": \"latency\", \"layout\": \"contiguous\", \"memory\": \"%s\","
                    " \"transport\": \"%s\", \"threads\": 1, \"ranks\": 2, \"bytes\": %zu,"
                    " \"unit\": \"us\", \"value\": %.4f, \"spread\": [%.4f, %.4f],"
                    " \"floor\": null, \"library\": \"ucx\"}",
                    first ? "" : ",", on_host ? "plain" : "device", device_name, bytes,
                    times[REPETITIONS / 2], times[0], times[REPETITIONS - 1]);
            printf("latency %12zu B %12.3f us\n", bytes, times[REPETITIONS / 2]);
            fflush(stdout);
        }
        first = 0;
        /* Both have what they wait for before memory goes. */
        char done = 1;
        put(&done, 1);
        get(&done, 1);
        release(from);
        release(to);
    }
    if (out) {
        fprintf(out, "\n]\n");
        if (fclose(out) || rename(beside, file))
            die("the file cannot be written", 0);
    }
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: ucx_messages SIZES FILE [host]\n");
        return 2;
    }
    on_host = argc > 3 && !strcmp(argv[3], "host");
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
        die("no pair of sockets", 0);
    fflush(stdout);
    /* Before the driver is opened: a forked context is of no use. */
    pid_t child = fork();
    if (child < 0)
        die("no second process", 0);
    rank = child == 0;
    peer = pair[rank];
    close(pair[1 - rank]);
    if (rank)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!on_host)
        driver_open();
    connect_both();
    measure(argv[1], argv[2]);
    if (rank)
        _exit(0);
    int status;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
