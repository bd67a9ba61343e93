/* A library that an attacker puts into every program it can: it writes down whose process it was loaded into. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

__attribute__((constructor)) static void mark(void) {
    char program[256] = "";
    char place[320];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length <= 0) return;
    char *name = strrchr(program, '/');
    snprintf(place, sizeof place, "/run/gpool-marks/loaded-by-%s", name ? name + 1 : program);
    FILE *file = fopen(place, "w");
    if (file) fclose(file);
}
