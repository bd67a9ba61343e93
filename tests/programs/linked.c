/* Linked with -lcuda, as a program or as a plugin. */
#include "any_glibc.h"
#include "driver_use.h"

int cuInit(unsigned flags);
int cuDeviceTotalMem_v2(size_t *bytes, int device);

const char *plugin(void) { return verdict(cuInit, cuDeviceTotalMem_v2); }

#ifndef LIBRARY
int main(int argc, char **argv) {
    printf("%s: %s\n", argc > 1 ? argv[1] : "linked", plugin());
    return 0;
}
#endif
