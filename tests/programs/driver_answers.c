/* Asks the driver's libraries everything that can be asked without a GPU and prints the answers, one a line, so that
 * those of two containers can be compared. Names are read from files, a name a line. */
#include "any_glibc.h"

#include <gnu/libc-version.h>
#include <stdio.h>
#include <string.h>

/* What cuGetProcAddress is asked as: programs built with CUDA 11.3, 12.5 and with one that is yet to come. */
static const int versions[] = {11030, 12050, 19990};

static void *opened(const char *library) {
    void *handle = dlopen(library, RTLD_NOW);
    if (!handle) printf("%s cannot be loaded: %s\n", library, dlerror());
    return handle;
}

/* Whether an address is in the library that was asked for or in the real one behind it. */
static const char *place_of(void *address) {
    Dl_info place;
    if (!address) return "none";
    if (!dladdr(address, &place)) return "nowhere";
    return strncmp(place.dli_fname, "/dev/gpool/real/", 16) ? "own" : "behind";
}

/* Where each name is found. */
static int exports(const char *library, FILE *names) {
    char name[256];
    void *handle = opened(library);
    if (!handle) return 1;
    while (fscanf(names, "%255s", name) == 1) printf("%s %s\n", name, place_of(dlsym(handle, name)));
    return 0;
}

/* What both versions of cuGetProcAddress say to each name, flags and version: result and place, and the status. */
static int lookups(FILE *names) {
    char name[256];
    void *handle = opened("libcuda.so.1");
    if (!handle) return 1;
    int (*first)(const char *, void **, int, unsigned long long) = dlsym(handle, "cuGetProcAddress");
    int (*second)(const char *, void **, int, unsigned long long, int *) = dlsym(handle, "cuGetProcAddress_v2");
    if (!first || !second) return 1;
    while (fscanf(names, "%255s", name) == 1) {
        for (unsigned long long flags = 0; flags < 3; flags++) {
            for (unsigned i = 0; i < sizeof versions / sizeof *versions; i++) {
                void *one = 0, *two = 0;
                int status = -1, result = first(name, &one, versions[i], flags);
                int other = second(name, &two, versions[i], flags, &status);
                printf("%s/%d/%llu %d %s %d %s %d\n", name, versions[i], flags, result, place_of(one), other,
                       place_of(two), status);
            }
        }
    }
    return 0;
}

static int begin(void) {
    void *cuda = opened("libcuda.so.1"), *nvml = opened("libnvidia-ml.so.1");
    if (!cuda || !nvml) return 1;
    int (*init)(unsigned) = dlsym(cuda, "cuInit");
    int (*driver_version)(int *) = dlsym(cuda, "cuDriverGetVersion");
    int (*allocate)(unsigned long long *, size_t) = dlsym(cuda, "cuMemAlloc_v2");
    int version = 0;
    unsigned long long memory = 0;
    printf("glibc %s\n", gnu_get_libc_version());
    printf("cuInit %d\n", init(0));
    printf("cuDriverGetVersion %d", driver_version(&version));
    printf(" %d\n", version);
    printf("cuMemAlloc_v2 %d\n", allocate(&memory, 4096));
    static const char *const ways[] = {"nvmlInit", "nvmlInit_v2"};
    for (int i = 0; i < 2; i++) printf("%s %d\n", ways[i], ((int (*)(void))dlsym(nvml, ways[i]))());
    printf("nvmlInitWithFlags %d\n", ((int (*)(unsigned))dlsym(nvml, "nvmlInitWithFlags"))(0));
    printf("nvmlErrorString %s\n", ((const char *(*)(int))dlsym(nvml, "nvmlErrorString"))(9));
    printf("nvmlDeviceGetMemoryInfo %d\n", ((int (*)(void *, void *))dlsym(nvml, "nvmlDeviceGetMemoryInfo"))(0, 0));
    return 0;
}

/* The CUDA runtime, which looks some hundred entry points up before it answers. */
static int runtime(const char *library) {
    void *handle = opened(library);
    if (!handle) return 1;
    int (*count)(int *) = dlsym(handle, "cudaGetDeviceCount");
    int (*driver)(int *) = dlsym(handle, "cudaDriverGetVersion"), (*own)(int *) = dlsym(handle, "cudaRuntimeGetVersion");
    int (*allocate)(void **, size_t) = dlsym(handle, "cudaMalloc");
    int devices = -1, driver_version = 0, own_version = 0;
    void *memory = 0;
    int result = count(&devices);
    printf("cudaGetDeviceCount %d %d\n", result, devices);
    result = driver(&driver_version);
    printf("cudaDriverGetVersion %d %d\n", result, driver_version);
    result = own(&own_version);
    printf("cudaRuntimeGetVersion %d %d\n", result, own_version);
    printf("cudaMalloc %d\n", allocate(&memory, 4096));
    return 0;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    FILE *names = argc > 2 ? fopen(argv[argc - 1], "r") : 0;
    int failed = 2;
    if (!strcmp(what, "exports") && argc == 4 && names) failed = exports(argv[2], names);
    if (!strcmp(what, "lookups") && argc == 3 && names) failed = lookups(names);
    if (!strcmp(what, "begin")) failed = begin();
    if (!strcmp(what, "runtime") && argc == 3) failed = runtime(argv[2]);
    fflush(stdout);
    return failed;
}
