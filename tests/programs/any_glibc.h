/* Makes a program that is compiled with a new glibc run with any since 2.17: everything that has a newer version is
 * taken at its first one, and so is the start of the program, which the compiler's own crt1.o takes at the newest.
 * Compiled with -nostartfiles, a library with -DLIBRARY, and with libdl.so.2 and libpthread.so.0 needed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>

__asm__(".symver dlopen,dlopen@GLIBC_2.2.5");
__asm__(".symver dlsym,dlsym@GLIBC_2.2.5");
__asm__(".symver dlerror,dlerror@GLIBC_2.2.5");
__asm__(".symver dladdr,dladdr@GLIBC_2.2.5");
__asm__(".symver dlclose,dlclose@GLIBC_2.2.5");
__asm__(".symver dlmopen,dlmopen@GLIBC_2.3.4");
__asm__(".symver pthread_create,pthread_create@GLIBC_2.2.5");
__asm__(".symver pthread_join,pthread_join@GLIBC_2.2.5");

#ifndef LIBRARY
__asm__(".symver __libc_start_main,__libc_start_main@GLIBC_2.2.5");

int main(int argc, char **argv);
/* Before glibc 2.34 it took the program's own constructors and destructors too; a null is none. */
int __libc_start_main(int (*main)(int, char **), int argc, char **argv, void (*init)(void), void (*fini)(void),
                      void (*loader_end)(void), void *stack_end);

__attribute__((used)) static void start(long *stack, void (*loader_end)(void)) {
    __libc_start_main((int (*)(int, char **))main, (int)stack[0], (char **)(stack + 1), 0, 0, loader_end, stack);
}

/* System V ABI: the arguments' count lies on the stack, and what the loader wants run at the end is in rdx. */
__asm__(".globl _start\n_start:\n xor %ebp, %ebp\n mov %rsp, %rdi\n mov %rdx, %rsi\n and $-16, %rsp\n call start\n hlt\n");

/* What atexit takes for the program's own handle, from the compiler's start files else. */
__attribute__((visibility("hidden"))) void *__dso_handle;
#endif
