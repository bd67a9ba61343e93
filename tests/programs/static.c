/* Linked statically, so that it has no loader until it loads a library. It only looks where the driver's functions come
 * from: a simulated driver needs more of a C library than such a program has. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
    Dl_info place;
    if (argc > 1) {
        printf("%s: runs\n", argv[1]);
        return 0;
    }
    void *handle = dlopen("libcuda.so.1", RTLD_NOW), *real = dlopen("/dev/gpool/real/libcuda.so.1", RTLD_NOW);
    void *found = handle ? dlsym(handle, "cuMemAlloc_v2") : 0;
    const char *answer = "not found";
    if (found && dladdr(found, &place)) {
        answer = strncmp(place.dli_fname, "/dev/gpool/", 11) && real ? "the shim's" : "the driver's";
    }
    printf("static program: %s\n", answer);
    return 0;
}
