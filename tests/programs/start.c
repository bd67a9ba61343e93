/* Loads the library that the first argument names, calls cuInit and ends with what that
   answered: the start of a program that uses CUDA. */
#include <dlfcn.h>
#include <stdio.h>

int main(int count, char **words) {
    void *library = count > 1 ? dlopen(words[1], RTLD_NOW) : NULL;
    int (*init)(unsigned) = library ? (int (*)(unsigned))dlsym(library, "cuInit") : NULL;
    int result = init ? init(0) : -1;
    if (!init) fprintf(stderr, "start: %s\n", count > 1 ? dlerror() : "which library?");
    return result;
}
