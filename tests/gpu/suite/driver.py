"""The CUDA driver API by ctypes, as far as the suite needs it: no package has to be installed.

Names and types are those of cuda.h; every call is looked up in the libcuda.so.1 that the loader finds, so under gpool
it is the shim's, as for any program.
"""

import ctypes
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p

# spin_ns waits for time to pass: what the simulated GPU gives a length. fused does a fixed amount of arithmetic, so a
# context that is not on the GPU makes no progress: what shares on a real GPU are measured with.
PTX = b""".version 6.0
.target sm_50
.address_size 64
.visible .entry spin_ns(.param .u64 ns)
{
    .reg .pred %p;
    .reg .u64 %start, %now, %end;
    ld.param.u64 %end, [ns];
    mov.u64 %start, %globaltimer;
    add.u64 %end, %end, %start;
again:
    mov.u64 %now, %globaltimer;
    setp.lt.u64 %p, %now, %end;
    @%p bra again;
    ret;
}
.visible .entry fused(.param .u64 rounds, .param .u64 sink)
{
    .reg .pred %p;
    .reg .u64 %left, %out;
    .reg .f32 %a, %b, %c, %d;
    ld.param.u64 %left, [rounds];
    ld.param.u64 %out, [sink];
    mov.f32 %a, 0f3F800001;
    mov.f32 %b, 0f3F7FFFFE;
    mov.f32 %c, 0f3F000000;
    mov.f32 %d, 0f3E800000;
round:
    fma.rn.f32 %c, %c, %b, %a;
    fma.rn.f32 %d, %d, %b, %a;
    fma.rn.f32 %c, %c, %b, %a;
    fma.rn.f32 %d, %d, %b, %a;
    sub.u64 %left, %left, 1;
    setp.gt.u64 %p, %left, 0;
    @%p bra round;
    setp.eq.f32 %p, %c, %d;
    @%p st.global.f32 [%out], %c;
    ret;
}
"""

# Each thread writes one number, so that what a kernel has computed can be compared. A module of its own: no tenant that is
# measured has it.
NUMBERS = b""".version 6.0
.target sm_50
.address_size 64
.visible .entry numbers(.param .u64 out)
{
    .reg .u32 %thread, %block, %threads, %number;
    .reg .u64 %place, %offset;
    ld.param.u64 %place, [out];
    mov.u32 %thread, %tid.x;
    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mad.lo.u32 %number, %block, %threads, %thread;
    mul.wide.u32 %offset, %number, 4;
    add.u64 %place, %place, %offset;
    mul.lo.u32 %number, %number, 40503;
    st.global.u32 [%place], %number;
    ret;
}
"""

SUCCESS = 0
OUT_OF_MEMORY = 2
NON_BLOCKING = 1
BLOCKING_SYNC = 1
DISABLE_TIMING = 2
CAPTURE_RELAXED = 2
ATTACH_GLOBAL = 1
PINNED = 1
ON_DEVICE = 1
# CU_POINTER_ATTRIBUTE_MEMORY_TYPE and CU_MEMORYTYPE_HOST.
MEMORY_TYPE, HOST = 2, 1


class DriverError(Exception):
    """A call of the driver that failed: its name and code."""

    def __init__(self, name, code):
        super().__init__(f"{name} gives {code}")
        self.name, self.code = name, code


class _Location(ctypes.Structure):
    _fields_ = [("type", c_int), ("id", c_int)]


class AllocationProperties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = [
        ("type", c_int),
        ("handles", c_int),
        ("location", _Location),
        ("win32", c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class PoolProperties(ctypes.Structure):
    """CUmemPoolProps."""

    _fields_ = [
        ("type", c_int),
        ("handles", c_int),
        ("location", _Location),
        ("win32", c_void_p),
        ("most", c_size_t),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 54),
    ]


class ArrayDescriptor(ctypes.Structure):
    """CUDA_ARRAY_DESCRIPTOR."""

    _fields_ = [("width", c_size_t), ("height", c_size_t), ("format", c_int), ("channels", c_uint)]


class Driver:
    """libcuda.so.1. Every method raises DriverError for every code but success."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", c_uint(0))

    def call(self, name, *arguments):
        code = getattr(self.library, name)(*arguments)
        if code != SUCCESS:
            raise DriverError(name, code)

    def version(self):
        version = c_int()
        self.call("cuDriverGetVersion", byref(version))
        return version.value

    def device_name(self):
        name = ctypes.create_string_buffer(128)
        self.call("cuDeviceGetName", name, c_int(128), c_int(0))
        return name.value.decode()

    def multiprocessors(self):
        count = c_int()
        self.call("cuDeviceGetAttribute", byref(count), c_int(16), c_int(0))
        return count.value


class Context:
    """A context on the first GPU, current to the thread that makes it, with a stream and the kernels of PTX."""

    def __init__(self, driver):
        self.driver = driver
        self.handle, self.stream = c_void_p(), c_void_p()
        driver.call("cuCtxCreate_v2", byref(self.handle), c_uint(0), c_int(0))
        self.spin, self.fused = self.functions(PTX, b"spin_ns", b"fused")
        driver.call("cuStreamCreate", byref(self.stream), c_uint(NON_BLOCKING))
        self.sink = self.allocate(4096)
        # A kernel for long times, a second stream, and what ends its part of a step.
        self.long_spin = self.side = self.joined = None

    def functions(self, image, *names):
        """The kernels of that name of a module that is loaded for them."""
        module, found = c_void_p(), []
        self.driver.call("cuModuleLoadData", byref(module), c_char_p(image))
        for name in names:
            found.append(c_void_p())
            self.driver.call("cuModuleGetFunction", byref(found[-1]), module, c_char_p(name))
        return found

    def allocate(self, size):
        address = c_uint64()
        self.driver.call("cuMemAlloc_v2", byref(address), c_size_t(size))
        return address.value

    def destroy(self):
        self.driver.call("cuCtxDestroy_v2", self.handle)

    def free(self, address):
        self.driver.call("cuMemFree_v2", c_uint64(address))

    def memory(self):
        """Free and total bytes, as the program is shown them."""
        free, total = c_size_t(), c_size_t()
        self.driver.call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value, total.value

    def launch_spin(self, nanoseconds):
        self._launch(self.spin, 1, 1, [c_uint64(nanoseconds)])

    def spin_beside(self, long_ns, own_ns, count):
        """A long kernel on a second stream, `count` others on the first, and on that whatever comes next behind all of them."""
        self._prepare_side()
        self._launch(self.long_spin, 1, 1, [c_uint64(long_ns)], self.side)
        for _ in range(count):
            self.launch_spin(own_ns)
        self.driver.call("cuEventRecord", self.joined, self.side)
        self.driver.call("cuStreamWaitEvent", self.stream, self.joined, c_uint(0))

    def spin_in_turn(self, long_ns, own_ns, count):
        """The same kernels, all on the first stream."""
        self._prepare_side()
        self._launch(self.long_spin, 1, 1, [c_uint64(long_ns)])
        for _ in range(count):
            self.launch_spin(own_ns)

    def _prepare_side(self):
        """The long kernel is another one than the short ones, as a collective is: what a kernel takes is known by its handle, and of one that
        takes 1 ms now and 20 then nothing is known. The same source gives another handle when it is loaded again."""
        if self.side is None:
            [self.long_spin] = self.functions(PTX, b"spin_ns")
            self.side, self.joined = c_void_p(), self.event()
            self.driver.call("cuStreamCreate", byref(self.side), c_uint(NON_BLOCKING))

    def launch_fused(self, blocks, rounds):
        self._launch(self.fused, blocks, 256, [c_uint64(rounds), c_uint64(self.sink)])

    def launch_numbers(self, blocks, address):
        """Writes 256 numbers for each block, of four bytes."""
        [function] = self.functions(NUMBERS, b"numbers")
        self._launch(function, blocks, 256, [c_uint64(address)])

    def _launch(self, function, blocks, threads, values, stream=None):
        pointers = (c_void_p * len(values))(*[ctypes.cast(byref(value), c_void_p) for value in values])
        sizes = [c_uint(size) for size in (blocks, 1, 1, threads, 1, 1, 0)]
        self.driver.call("cuLaunchKernel", function, *sizes, stream or self.stream, pointers, None)

    def capture(self, launch, count):
        """A graph of `count` launches, ready to be launched."""
        graph, ready = c_void_p(), c_void_p()
        self.driver.call("cuStreamBeginCapture_v2", self.stream, c_int(CAPTURE_RELAXED))
        try:
            for _ in range(count):
                launch()
        except DriverError:
            # The stream takes nothing else before its capture has ended, with whatever that says.
            self.driver.library.cuStreamEndCapture(self.stream, byref(graph))
            raise
        self.driver.call("cuStreamEndCapture", self.stream, byref(graph))
        self.driver.call("cuGraphInstantiateWithFlags", byref(ready), graph, ctypes.c_ulonglong(0))
        return ready

    def launch_graph(self, ready):
        self.driver.call("cuGraphLaunch", ready, self.stream)

    def event(self, is_sleeping=False):
        event = c_void_p()
        self.driver.call("cuEventCreate", byref(event), c_uint(DISABLE_TIMING | (BLOCKING_SYNC if is_sleeping else 0)))
        return event

    def record(self, event):
        self.driver.call("cuEventRecord", event, self.stream)

    def wait(self, event):
        self.driver.call("cuEventSynchronize", event)

    def synchronize(self):
        self.driver.call("cuStreamSynchronize", self.stream)


def allocators(context):
    """By name, functions that take one piece of `size` bytes on the device, keep it, and answer its address if it has one."""
    call, device = context.driver.call, 0

    def managed(size):
        address = c_uint64()
        call("cuMemAllocManaged", byref(address), c_size_t(size), c_uint(ATTACH_GLOBAL))
        return address.value

    def created(size):
        properties = AllocationProperties(type=PINNED, location=_Location(ON_DEVICE, device))
        call("cuMemCreate", byref(c_uint64()), c_size_t(size), byref(properties), ctypes.c_ulonglong(0))

    def asynchronous(size):
        call("cuMemAllocAsync", byref(c_uint64()), c_size_t(size), context.stream)
        context.synchronize()

    pools = []

    def of_a_pool(size):
        # Of one that the program has made for itself.
        if not pools:
            properties = PoolProperties(type=PINNED, location=_Location(ON_DEVICE, device))
            pool = c_void_p()
            call("cuMemPoolCreate", byref(pool), byref(properties))
            pools.append(pool)
        call("cuMemAllocFromPoolAsync", byref(c_uint64()), c_size_t(size), pools[0], context.stream)
        context.synchronize()

    def of_a_graph(size):
        # Of a node that allocates: its memory is there once the graph is launched, and stays, because nothing frees it.
        take = lambda: call("cuMemAllocAsync", byref(c_uint64()), c_size_t(size), context.stream)
        context.launch_graph(context.capture(take, 1))
        context.synchronize()

    def pitched(size):
        # Rows of 64 KiB.
        pitch = c_size_t()
        call("cuMemAllocPitch_v2", byref(c_uint64()), byref(pitch), c_size_t(65536), c_size_t(size // 65536), c_uint(16))

    def array(size):
        # Rows of 4096 elements of four floats: 64 KiB each.
        descriptor = ArrayDescriptor(width=4096, height=size // 65536, format=0x20, channels=4)
        call("cuArrayCreate_v2", byref(c_void_p()), byref(descriptor))

    return {
        "cuMemAlloc": context.allocate,
        "cuMemAllocManaged": managed,
        "cuMemCreate": created,
        "cuMemAllocPitch": pitched,
        "cuMemAllocAsync": asynchronous,
        "cuMemAllocFromPoolAsync": of_a_pool,
        "cuGraphAddMemAllocNode": of_a_graph,
        "cuArrayCreate": array,
    }


def copy_out(context, address, size):
    """`size` bytes of device memory, as bytes."""
    host = ctypes.create_string_buffer(size)
    context.driver.call("cuMemcpyDtoH_v2", host, c_uint64(address), c_size_t(size))
    return host.raw


def begin_copy(context, to, source, size):
    """Copies `size` bytes on the device, in the context's stream."""
    context.driver.call("cuMemcpyDtoDAsync_v2", c_uint64(to), c_uint64(source), c_size_t(size), context.stream)


def is_on_host(context, address):
    """Whether what is at an address is the host's memory."""
    kind = c_uint()
    context.driver.call("cuPointerGetAttribute", byref(kind), c_int(MEMORY_TYPE), c_uint64(address))
    return kind.value == HOST


def is_known(context, address):
    """Whether an address is anything to the driver."""
    try:
        is_on_host(context, address)
        return True
    except DriverError:
        return False


def begin_fill(context, address, byte, size):
    """Sets `size` bytes of device memory, in the context's stream: what is launched there later comes after it."""
    context.driver.call("cuMemsetD8Async", c_uint64(address), ctypes.c_ubyte(byte), c_size_t(size), context.stream)


def fill(context, address, byte, size):
    """The same, and waits for it."""
    begin_fill(context, address, byte, size)
    context.synchronize()
