/* Compiled for musl, which cannot load libraries that are made for glibc: NVIDIA's, and so the shims. */
#include <dlfcn.h>
#include <stdio.h>

int main(void) {
    printf("runs yes\n");
    printf("loads %s\n", dlopen("libcuda.so.1", RTLD_NOW) ? "yes" : "no");
    return 0;
}
