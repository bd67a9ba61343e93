/* How a program uses the driver, once it has found it: what is the first GPU's memory? In a leased container it is the
 * lease's if the shim was asked, and the device's if not. */
#include <stdio.h>

typedef int (*init_function)(unsigned);
typedef int (*total_function)(size_t *, int);

static const char *verdict(init_function init, total_function total) {
    static char text[64];
    size_t bytes = 0;
    if (!init || !total) return "not found";
    int began = init(0), told = total(&bytes, 0);
    if (began || told) snprintf(text, sizeof text, "cuInit %d, cuDeviceTotalMem %d", began, told);
    else snprintf(text, sizeof text, "%zu MiB", bytes >> 20);
    return text;
}
