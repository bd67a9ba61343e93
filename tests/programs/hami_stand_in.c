/* A stand-in for HAMi-core's library, so that the suite for a real GPU is tried with one: preloaded, it answers dlsym,
 * shows the limit of memory as the device's whole, and refuses cuMemAlloc above it. It limits no compute and no other
 * allocator; nothing measured with it says anything about HAMi-core. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

typedef int (*of_two_sizes)(size_t *, size_t *);
typedef int (*of_address_and_size)(unsigned long long *, size_t);

static of_two_sizes real_info;
static of_address_and_size real_allocate;
static size_t held;

static size_t limit(void)
{
    const char *text = getenv("CUDA_DEVICE_MEMORY_LIMIT");
    return text ? strtoul(text, 0, 10) << 30 : 0;
}

static int info(size_t *available, size_t *whole)
{
    int code = real_info(available, whole);
    *whole = limit();
    *available = *whole - held;
    return code;
}

static int allocate(unsigned long long *address, size_t size)
{
    int code = held + size > limit() ? 2 /* CUDA_ERROR_OUT_OF_MEMORY */ : real_allocate(address, size);
    if (code == 0)
        held += size;
    return code;
}

void *dlsym(void *library, const char *name)
{
    static void *(*real)(void *, const char *);
    void *found;
    if (!real)
        real = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    if (!real)
        real = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    found = real(library, name);
    if (found && !strcmp(name, "cuMemGetInfo_v2")) {
        real_info = (of_two_sizes)found;
        return info;
    }
    if (found && !strcmp(name, "cuMemAlloc_v2")) {
        real_allocate = (of_address_and_size)found;
        return allocate;
    }
    return found;
}
