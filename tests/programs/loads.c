/* Loads the driver when it is told to, in each of the ways in which programs do; also as a plugin. */
#include "any_glibc.h"
#include "driver_use.h"

#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *used(void *handle) {
    if (!handle) return dlerror();
    return verdict((init_function)dlsym(handle, "cuInit"), (total_function)dlsym(handle, "cuDeviceTotalMem_v2"));
}

const char *plugin(void) { return used(dlopen("libcuda.so.1", RTLD_NOW)); }

#ifndef LIBRARY
static void say(const char *row, const char *answer) {
    printf("%s: %s\n", row, answer ? answer : "nothing");
    fflush(stdout);
}

typedef int (*lookup_function)(const char *, void **, int, unsigned long long);
typedef int (*lookup_v2_function)(const char *, void **, int, unsigned long long, int *);

static const char *driver_directory, *other_directory;

static const char *by_path(const char *directory, const char *name) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return used(dlopen(path, RTLD_NOW));
}

static void looked_up(void) {
    void *handle = dlopen("libcuda.so.1", RTLD_NOW), *init = 0, *total = 0, *itself = 0;
    lookup_function first = (lookup_function)dlsym(handle, "cuGetProcAddress");
    first("cuInit", &init, 12020, 0);
    first("cuDeviceTotalMem", &total, 12020, 0);
    say("cuGetProcAddress", verdict((init_function)init, (total_function)total));
    lookup_v2_function second = (lookup_v2_function)dlsym(handle, "cuGetProcAddress_v2");
    second("cuDeviceTotalMem", &total, 12020, 0, 0);
    say("cuGetProcAddress_v2", verdict((init_function)init, (total_function)total));
    second("cuGetProcAddress", &itself, 12020, 0, 0);
    ((lookup_v2_function)itself)("cuDeviceTotalMem", &total, 12020, 0, 0);
    say("cuGetProcAddress through itself", verdict((init_function)init, (total_function)total));
}

static void plugins(const char *directory) {
    static const char *const files[] = {"loads.so", "linked.so"};
    static const char *const rows[] = {"plugin that loads", "plugin that is linked", "deep-bound plugin that loads",
                                       "deep-bound plugin that is linked"};
    for (int i = 0; i < 4; i++) {
        char path[256];
        snprintf(path, sizeof path, "%s/%s", directory, files[i % 2]);
        void *handle = dlopen(path, RTLD_NOW | (i < 2 ? 0 : RTLD_DEEPBIND));
        const char *(*ask)(void) = handle ? (const char *(*)(void))dlsym(handle, "plugin") : 0;
        say(rows[i], ask ? ask() : dlerror());
    }
}

#define CALLS 100000

static void *thread(void *handle) {
    total_function total = (total_function)dlsym(handle, "cuDeviceTotalMem_v2");
    size_t first = 0, bytes = 0;
    total(&first, 0);
    for (int i = 0; i < CALLS; i++) {
        if (total(&bytes, 0) || bytes != first) return "differs";
    }
    return 0;
}

static void threads(void) {
    pthread_t all[8];
    void *handle = dlopen("libcuda.so.1", RTLD_NOW), *result = 0;
    const char *answer = used(handle);
    for (int i = 0; i < 8; i++) pthread_create(&all[i], 0, thread, handle);
    for (int i = 0; i < 8; i++) {
        pthread_join(all[i], &result);
        if (result) answer = result;
    }
    say("8 threads", answer);
}

static void at_exit(void) { say("atexit handler", plugin()); }

/* After fork nobody may use a driver that the parent has initialised; who executes a program may. */
static void in_children(void) {
    used(dlopen("libcuda.so.1", RTLD_NOW));
    fflush(stdout);
    for (int i = 0; i < 2; i++) {
        pid_t child = fork();
        if (!child && !i) {
            say("forked after use", plugin());
            _exit(0);
        }
        if (!child) execl("/proc/self/exe", "loads", "executed after use", (char *)0);
        waitpid(child, 0, 0);
    }
}

static void closed_again(void) {
    for (int i = 0; i < 3; i++) {
        void *handle = dlopen("libcuda.so.1", RTLD_NOW);
        used(handle);
        dlclose(handle);
    }
    say("dlclose three times", plugin());
}

/* Each way in a process of its own: what one has loaded must not help the next. */
static void way(int number, const char *directory) {
    switch (number) {
    case 0: say("dlopen lazy", used(dlopen("libcuda.so.1", RTLD_LAZY))); break;
    case 1: say("dlopen now", used(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL))); break;
    case 2:
        dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
        say("dlopen global, RTLD_DEFAULT", verdict((init_function)dlsym(RTLD_DEFAULT, "cuInit"),
                                                    (total_function)dlsym(RTLD_DEFAULT, "cuDeviceTotalMem_v2")));
        break;
    case 3: say("dlopen deep-bound", used(dlopen("libcuda.so.1", RTLD_NOW | RTLD_DEEPBIND))); break;
    case 4: say("dlopen without version", used(dlopen("libcuda.so", RTLD_NOW))); break;
    case 5: say("dlopen by path", by_path(driver_directory, "libcuda.so.1")); break;
    case 6: say("dlopen by path without version", by_path(driver_directory, "libcuda.so")); break;
    case 7: say("dlmopen", used(dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW))); break;
    case 8: looked_up(); break;
    case 9: plugins(directory); break;
    case 10: closed_again(); break;
    case 11: threads(); break;
    case 12: atexit(at_exit); break;
    case 13: say("another driver by its path", by_path(other_directory, "libcuda.so.1")); break;
    case 14: in_children(); break;
    }
}

int main(int argc, char **argv) {
    const char *row = argc > 1 ? argv[1] : "";
    if (!strcmp(row, "ways") && argc == 5) {
        driver_directory = argv[3];
        other_directory = argv[4];
        for (int number = 0; number < 15; number++) {
            pid_t child = fork();
            if (!child) {
                way(number, argv[2]);
                exit(0);
            }
            int status = 0;
            waitpid(child, &status, 0);
            if (status) printf("way %d: ended with %d\n", number, status);
            fflush(stdout);
        }
        return 0;
    }
    if (!strcmp(row, "as nobody") && argc == 4) {
        if (setgid(65534) || setuid(65534)) return 1;
        execl(argv[2], argv[2], argv[3], (char *)0);
        return 1;
    }
    if (!strcmp(row, "setuid program") && !getauxval(AT_SECURE)) say(row, "the kernel did not make it one");
    else say(row, plugin());
    return 0;
}
#endif
