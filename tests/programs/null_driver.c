/* A driver that does nothing as fast as it can: what a call through the shim costs beyond this is gpool's. A launch is a
 * microsecond of the stream's time and a graph 25, which is all that events tell. Memory is numbers. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PIECE (2ul << 20)
#define PIECES (1ul << 18)
#define BASE (1ul << 40)

struct stream { unsigned long busy_ns; };

static struct stream null_stream;
static unsigned long bytes_at[PIECES], next_piece, freed_pieces[PIECES], freed_count;
static volatile int memory_lock;

static struct stream *stream_of(struct stream *stream) { return (unsigned long)stream <= 2 ? &null_stream : stream; }

/* Relaxed, as a driver's own counters are: the watcher reads what another thread counts. */
static int busy(struct stream *stream, unsigned long ns) {
    unsigned long *busy_ns = &stream_of(stream)->busy_ns;
    __atomic_store_n(busy_ns, __atomic_load_n(busy_ns, __ATOMIC_RELAXED) + ns, __ATOMIC_RELAXED);
    return 0;
}

/* A profiler's callback, at the beginning and at the end of a call. In there it may call anything but is not called. */
static void (*callback)(void);
static __thread int is_in_callback;
void gpool_subscribe(void (*function)(void)) { __atomic_store_n(&callback, function, __ATOMIC_RELEASE); }
static void call_back(void) {
    void (*function)(void) = __atomic_load_n(&callback, __ATOMIC_ACQUIRE);
    if (!function || is_in_callback) return;
    is_in_callback = 1;
    function();
    is_in_callback = 0;
}

int cuInit(unsigned flags) { return (int)flags; }
int cuDriverGetVersion(int *version) { *version = 12020; return 0; }
int cuStreamCreate(struct stream **stream, unsigned flags) {
    (void)flags;
    *stream = calloc(1, sizeof **stream);
    return *stream ? 0 : 2;
}
int cuStreamDestroy_v2(struct stream *stream) { free(stream); return 0; }
int cuStreamSynchronize(struct stream *stream) { (void)stream; return 0; }
int cuStreamGetCtx(struct stream *stream, void **context) { (void)stream; *context = (void *)64; return 0; }
int cuStreamIsCapturing(struct stream *stream, int *status) { (void)stream; *status = 0; return 0; }
int cuThreadExchangeStreamCaptureMode(int *mode) { (void)mode; return 0; }

int cuEventCreate(unsigned long **event, unsigned flags) {
    (void)flags;
    *event = calloc(1, sizeof **event);
    return *event ? 0 : 2;
}
int cuEventDestroy_v2(unsigned long *event) { free(event); return 0; }
int cuEventRecord(unsigned long *event, struct stream *stream) {
    *event = __atomic_load_n(&stream_of(stream)->busy_ns, __ATOMIC_RELAXED);
    return 0;
}
int cuEventQuery(unsigned long *event) { (void)event; return 0; }
int cuEventSynchronize(unsigned long *event) { (void)event; return 0; }
int cuEventElapsedTime(float *ms, unsigned long *from, unsigned long *to) {
    *ms = (float)((double)(long)(*to - *from) / 1e6);
    return 0;
}

int cuCtxCreate_v2(void **context, unsigned flags, int device) {
    (void)flags; (void)device;
    *context = (void *)64;
    return 0;
}
/* Each its own, so that each is seen to go. */
static void *new_handle(void) {
    static unsigned long made;
    return (void *)(128 + 64 * __atomic_fetch_add(&made, 1, __ATOMIC_RELAXED));
}
int cuGLCtxCreate(void **context, unsigned flags, int device) {
    (void)flags; (void)device;
    call_back();
    *context = new_handle();
    call_back();
    return 0;
}
int cuGLCtxCreate_v2(void **context, unsigned flags, int device) { return cuGLCtxCreate(context, flags, device); }
int cuVDPAUCtxCreate(void **context, unsigned flags, int device, unsigned display, void *functions) {
    (void)display; (void)functions;
    return cuGLCtxCreate(context, flags, device);
}
int cuVDPAUCtxCreate_v2(void **context, unsigned flags, int device, unsigned display, void *functions) {
    return cuVDPAUCtxCreate(context, flags, device, display, functions);
}
int cuCtxAttach(void **context, unsigned flags) {
    (void)flags;
    *context = (void *)64;
    return 0;
}
int cuCtxDetach(void *context) { (void)context; return 0; }
int cuCtxDestroy_v2(void *context) { (void)context; return 0; }
static __thread void *current = (void *)64;
int cuCtxGetCurrent(void **context) { *context = current; return 0; }
int cuCtxSetCurrent(void *context) { current = context; return 0; }
int cuCtxPushCurrent_v2(void *context) { (void)context; return 0; }
int cuCtxPopCurrent_v2(void **context) { *context = (void *)64; return 0; }
int cuCtxGetDevice(int *device) { *device = 0; return 0; }
int cuCtxSynchronize(void) { return 0; }
int cuDeviceGetUuid(unsigned char *uuid, int device) { memset(uuid, device + 1, 16); return 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { (void)device; *bytes = PIECES * PIECE; return 0; }
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    if (free_bytes) *free_bytes = PIECES * PIECE;
    if (total) *total = PIECES * PIECE;
    return 0;
}
int cuPointerGetAttribute(void *answer, int attribute, unsigned long pointer) {
    (void)answer; (void)attribute; (void)pointer;
    return 1;
}

static void lock_memory(void) { while (__atomic_exchange_n(&memory_lock, 1, __ATOMIC_ACQUIRE)) __builtin_ia32_pause(); }
static void unlock_memory(void) { __atomic_store_n(&memory_lock, 0, __ATOMIC_RELEASE); }

int cuMemAlloc_v2(unsigned long *pointer, size_t bytes) {
    int failed = 2;
    lock_memory();
    if (freed_count || next_piece < PIECES) {
        unsigned long piece = freed_count ? freed_pieces[--freed_count] : next_piece++;
        bytes_at[piece] = bytes;
        *pointer = BASE + piece * PIECE;
        failed = 0;
    }
    unlock_memory();
    return failed;
}
int cuMemFree_v2(unsigned long pointer) {
    unsigned long piece = (pointer - BASE) / PIECE;
    int failed = 1;
    lock_memory();
    if (pointer >= BASE && piece < next_piece && bytes_at[piece]) {
        bytes_at[piece] = 0;
        freed_pieces[freed_count++] = piece;
        failed = 0;
    }
    unlock_memory();
    return failed;
}
int cuMemGetAddressRange_v2(unsigned long *base, size_t *bytes, unsigned long pointer) {
    unsigned long piece = (pointer - BASE) / PIECE;
    if (pointer < BASE || piece >= PIECES) return 1;
    *base = BASE + piece * PIECE;
    *bytes = bytes_at[piece];
    return *bytes ? 0 : 1;
}

#define PRIMARY ((void *)0x50000)
static int primary_users;
int cuDevicePrimaryCtxRetain(void **context, int device) {
    (void)device;
    call_back();
    __atomic_fetch_add(&primary_users, 1, __ATOMIC_ACQ_REL);
    *context = PRIMARY;
    call_back();
    return 0;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
    (void)device;
    call_back();
    __atomic_fetch_sub(&primary_users, 1, __ATOMIC_ACQ_REL);
    call_back();
    return 0;
}
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *is_active) {
    (void)device;
    *flags = 0;
    *is_active = __atomic_load_n(&primary_users, __ATOMIC_ACQUIRE) > 0;
    return 0;
}
/* A green context keeps the primary one, and is used as a context by another handle. */
int cuGreenCtxCreate(char **green, void *resources, int device, unsigned flags) {
    (void)resources; (void)device; (void)flags;
    __atomic_fetch_add(&primary_users, 1, __ATOMIC_ACQ_REL);
    *green = new_handle();
    return 0;
}
int cuCtxFromGreenCtx(char **context, char *green) { *context = green + 32; return 0; }
int cuGreenCtxDestroy(char *green) {
    (void)green;
    __atomic_fetch_sub(&primary_users, 1, __ATOMIC_ACQ_REL);
    return 0;
}
int cuLibraryLoadData(void **library, const void *image) {
    (void)image;
    call_back();
    *library = new_handle();
    call_back();
    return 0;
}
int cuLibraryUnload(void *library) { (void)library; call_back(); call_back(); return 0; }
int cuModuleLoadData(void **module, const void *image) { (void)image; *module = new_handle(); return 0; }
int cuModuleUnload(void *module) { (void)module; return 0; }

/* Memory without an address. The handle of what went last is given first, as a driver may. Only of what begins at a
 * piece's start it is known where it shows. */
#define SHOWN (1ul << 44)
#define SHOWS 4096ul
struct physical { unsigned long references, mappings; struct physical *next_free; };
static struct physical *free_physical, *shows[SHOWS];

static void drop_unused(struct physical *memory) {
    if (memory->references || memory->mappings) return;
    memory->next_free = free_physical;
    free_physical = memory;
}
static struct physical **show_at(unsigned long address) {
    return address < SHOWN || address >= SHOWN + SHOWS * PIECE ? NULL : &shows[(address - SHOWN) / PIECE];
}
static struct physical *new_physical(void) {
    struct physical *made;
    lock_memory();
    made = free_physical;
    if (made) free_physical = made->next_free;
    else made = calloc(1, sizeof *made);
    if (made) made->references = 1;
    unlock_memory();
    return made;
}
int cuMemCreate(struct physical **handle, size_t bytes, const void *properties, unsigned long flags) {
    (void)bytes; (void)properties; (void)flags;
    call_back();
    *handle = new_physical();
    call_back();
    return *handle ? 0 : 2;
}
int cuMemRelease(struct physical *memory) {
    int failed = 1;
    call_back();
    lock_memory();
    if (memory->references) {
        memory->references--;
        drop_unused(memory);
        failed = 0;
    }
    unlock_memory();
    call_back();
    return failed;
}
int cuMemRetainAllocationHandle(struct physical **handle, unsigned long address) {
    struct physical **place = show_at(address);
    int failed = 1;
    call_back();
    lock_memory();
    if (place && *place) {
        (*place)->references++;
        *handle = *place;
        failed = 0;
    }
    unlock_memory();
    call_back();
    return failed;
}
/* A descriptor that means nothing. What is imported by it is new memory. */
int cuMemExportToShareableHandle(int *descriptor, struct physical *memory, unsigned kind, unsigned long flags) {
    (void)memory; (void)kind; (void)flags;
    call_back();
    *descriptor = memfd_create("memory", MFD_CLOEXEC);
    call_back();
    return *descriptor < 0 ? 2 : 0;
}
int cuMemImportFromShareableHandle(struct physical **handle, void *descriptor, unsigned kind) {
    (void)descriptor;
    return cuMemCreate(handle, 0, NULL, kind);
}
int cuMemUnmap(unsigned long address, size_t bytes) {
    unsigned long end = address + bytes, count = 0;
    call_back();
    lock_memory();
    for (; address < end; address += PIECE) {
        struct physical **place = show_at(address);
        if (!place || !*place) continue;
        (*place)->mappings--;
        drop_unused(*place);
        *place = NULL;
        count++;
    }
    unlock_memory();
    call_back();
    return count ? 0 : 1;
}

/* A multicast object of two devices. What is bound to it, and where it shows, waits until both have been added, but not
 * for ever: whoever cannot add the second one because of that is to be told. */
#define MULTICAST ((void *)0x4d00)
static int multicast_devices;
static int both_are_added(void) {
    int turns;
    for (turns = 0; turns < 10000 && __atomic_load_n(&multicast_devices, __ATOMIC_ACQUIRE) < 2; turns++) usleep(1000);
    return turns < 10000 ? 0 : 999;
}
int cuMulticastCreate(void **handle, const void *properties) { (void)properties; *handle = MULTICAST; return 0; }
int cuMulticastAddDevice(void *handle, int device) {
    (void)handle; (void)device;
    __atomic_fetch_add(&multicast_devices, 1, __ATOMIC_RELEASE);
    return 0;
}
int cuMulticastBindMem(void *handle, size_t at, void *memory, size_t offset, size_t bytes, unsigned long flags) {
    (void)handle; (void)at; (void)memory; (void)offset; (void)flags;
    /* Not of whole pages. */
    return bytes % PIECE ? 1 : both_are_added();
}
int cuMemMap(unsigned long address, size_t bytes, size_t offset, struct physical *memory, unsigned long flags) {
    struct physical **place = show_at(address);
    int failed = 1;
    (void)bytes; (void)offset; (void)flags;
    if ((void *)memory == MULTICAST) return both_are_added();
    call_back();
    lock_memory();
    if (place && !*place) {
        *place = memory;
        memory->mappings++;
        failed = 0;
    }
    unlock_memory();
    call_back();
    return failed;
}

/* Pools hold whole pieces for what was allocated from them, until they are told to give back the rest. */
#define POOL_PIECE (32ul << 20)
struct pool { unsigned long used, held; };
static struct pool default_pool;
/* From which pool each piece came. */
static struct pool *pool_of[PIECES];

int cuMemPoolCreate(struct pool **pool, const void *properties) {
    (void)properties;
    *pool = calloc(1, sizeof **pool);
    return *pool ? 0 : 2;
}
int cuMemPoolDestroy(struct pool *pool) { free(pool); return 0; }
int cuDeviceGetMemPool(struct pool **pool, int device) { (void)device; *pool = &default_pool; return 0; }
int cuDeviceGetDefaultMemPool(struct pool **pool, int device) { return cuDeviceGetMemPool(pool, device); }
/* How much it holds is all that it is asked. */
int cuMemPoolGetAttribute(struct pool *pool, int attribute, unsigned long *answer) {
    (void)attribute;
    call_back();
    lock_memory();
    *answer = pool->held;
    unlock_memory();
    call_back();
    return 0;
}
int cuMemPoolTrimTo(struct pool *pool, size_t keep) {
    (void)keep;
    lock_memory();
    pool->held = (pool->used + POOL_PIECE - 1) / POOL_PIECE * POOL_PIECE;
    unlock_memory();
    return 0;
}
int cuMemAllocFromPoolAsync(unsigned long *pointer, size_t bytes, struct pool *pool, struct stream *stream) {
    unsigned long needed;
    (void)stream;
    if (cuMemAlloc_v2(pointer, bytes)) return 2;
    lock_memory();
    pool_of[(*pointer - BASE) / PIECE] = pool;
    pool->used += bytes;
    needed = (pool->used + POOL_PIECE - 1) / POOL_PIECE * POOL_PIECE;
    if (pool->held < needed) pool->held = needed;
    unlock_memory();
    return 0;
}
int cuMemAllocAsync(unsigned long *pointer, size_t bytes, struct stream *stream) {
    return cuMemAllocFromPoolAsync(pointer, bytes, &default_pool, stream);
}
int cuMemFreeAsync(unsigned long pointer, struct stream *stream) {
    unsigned long piece = (pointer - BASE) / PIECE;
    (void)stream;
    if (pointer < BASE || piece >= PIECES) return 1;
    lock_memory();
    pool_of[piece]->used -= bytes_at[piece];
    unlock_memory();
    return cuMemFree_v2(pointer);
}

int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, struct stream *stream, void **parameters, void **extra) {
    (void)function; (void)gx; (void)gy; (void)gz; (void)bx; (void)by; (void)bz; (void)shared; (void)parameters;
    (void)extra;
    return busy(stream, 1000);
}
/* A graph is what its maker says it is. What it allocates, inner graphs left out, is set aside by an upload. */
struct graph;
struct node { unsigned type; unsigned long bytes; struct graph *inner; };
struct graph { size_t count; struct node nodes[4]; };
static unsigned long set_aside;

int cuGraphGetNodes(struct graph *graph, struct node **nodes, size_t *count) {
    size_t index;
    for (index = 0; nodes && index < *count; index++) nodes[index] = &graph->nodes[index];
    *count = graph->count;
    return 0;
}
int cuGraphNodeGetType(struct node *node, unsigned *type) { *type = node->type; return 0; }
int cuGraphChildGraphNodeGetGraph(struct node *node, struct graph **inner) { *inner = node->inner; return 0; }
int cuGraphMemAllocNodeGetParams(struct node *node, unsigned *parameters) {
    memset(parameters, 0, 120);
    parameters[2] = 1; /* on a device, the first */
    memcpy(parameters + 26, &node->bytes, sizeof node->bytes);
    return 0;
}
int cuGraphAddMemAllocNode(void *node, void *graph, void *before, size_t count, void *parameters) {
    (void)node; (void)graph; (void)before; (void)count; (void)parameters;
    return 0;
}
int cuGraphInstantiateWithFlags(struct graph **made, struct graph *graph, unsigned long flags) {
    (void)flags;
    *made = graph;
    return 0;
}
int cuGraphUpload(struct graph *graph, struct stream *stream) {
    size_t index;
    unsigned long bytes = 0;
    (void)stream;
    for (index = 0; index < graph->count; index++) bytes += graph->nodes[index].bytes;
    lock_memory();
    if (set_aside < bytes) set_aside = bytes;
    unlock_memory();
    return 0;
}
int cuDeviceGetGraphMemAttribute(int device, int attribute, unsigned long *answer) {
    (void)device;
    lock_memory();
    *answer = attribute == 2 ? set_aside : 0;
    unlock_memory();
    return 0;
}
int cuDeviceGraphMemTrim(int device) {
    (void)device;
    lock_memory();
    set_aside = 0;
    unlock_memory();
    return 0;
}

int cuGraphExecDestroy(void *graph) { (void)graph; return 0; }
int cuGraphLaunch(void *graph, struct stream *stream) { (void)graph; return busy(stream, 25000); }
int cuMemcpyDtoDAsync_v2(unsigned long to, unsigned long from, size_t bytes, struct stream *stream) {
    (void)to; (void)from; (void)bytes;
    return busy(stream, 1000);
}
