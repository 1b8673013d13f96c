/* The CUDA driver, as a program loads it that links none. */
#ifndef DRIVER_H
#define DRIVER_H

#include "check.h"
#include <dlfcn.h>
#include <stdint.h>

typedef uint64_t device_address;

static struct {
    int (*init)(unsigned);
    int (*device)(int *, int);
    int (*retain)(void **, int);
    int (*current)(void *);
    int (*allocate)(device_address *, size_t);
    int (*managed)(device_address *, size_t, unsigned);
    int (*release)(device_address);
    int (*to_device)(device_address, const void *, size_t);
    int (*from_device)(void *, device_address, size_t);
} cuda;

static inline void *symbol(void *library, const char *name) {
    void *found = dlsym(library, name);
    if (!found) fprintf(stderr, "no %s\n", name);
    CHECK(found);
    return found;
}

static inline void open_driver(void) {
    /* The last pair of this key in OSIER_DEBUG; the path has no comma. */
    const char *key = "cuda-library=", *text = getenv("OSIER_DEBUG"), *name = NULL;
    char path[4096] = "libcuda.so.1";
    while (text && (text = strstr(text, key))) name = text += strlen(key);
    if (name) snprintf(path, sizeof path, "%.*s", (int)strcspn(name, ","), name);
    void *library = dlopen(path, RTLD_NOW);
    if (!library) fprintf(stderr, "%s\n", dlerror());
    CHECK(library);
#define ENTRY(field, name) *(void **)&cuda.field = symbol(library, name)
    ENTRY(init, "cuInit");
    ENTRY(device, "cuDeviceGet");
    ENTRY(retain, "cuDevicePrimaryCtxRetain");
    ENTRY(current, "cuCtxSetCurrent");
    ENTRY(allocate, "cuMemAlloc_v2");
    ENTRY(managed, "cuMemAllocManaged");
    ENTRY(release, "cuMemFree_v2");
    ENTRY(to_device, "cuMemcpyHtoD_v2");
    ENTRY(from_device, "cuMemcpyDtoH_v2");
    int device;
    void *context;
    CHECK(cuda.init(0) == 0);
    CHECK(cuda.device(&device, 0) == 0);
    CHECK(cuda.retain(&context, device) == 0);
    CHECK(cuda.current(context) == 0);
}

static inline void *on_device(size_t bytes) {
    device_address at = 0;
    CHECK(cuda.allocate(&at, bytes) == 0);
    return (void *)at;
}

static inline void fill(void *device, const void *host, size_t bytes) {
    CHECK(cuda.to_device((device_address)device, host, bytes) == 0);
}

static inline void fetch(void *host, void *device, size_t bytes) {
    CHECK(cuda.from_device(host, (device_address)device, bytes) == 0);
}

#endif
