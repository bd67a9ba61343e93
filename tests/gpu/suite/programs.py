"""Small programs of other people's packages. Each prints what it computed, to the bit; run twice they print the same.
At its end it tells on standard error by which driver it did.

A package that is not installed ends the program with 77 and says so, as autotools' tests do.
"""

import hashlib
import sys

from . import libraries

SKIPPED = 77


def needs(name):
    try:
        return __import__(name)
    except ImportError as error:
        print(f"{name} is not installed ({error})")
        sys.exit(SKIPPED)


def digest(values):
    """Of anything that numpy makes an array of."""
    import numpy

    return hashlib.sha256(numpy.ascontiguousarray(values).tobytes()).hexdigest()


def driver():
    """What a fill and a kernel have written, each in its half of a MiB."""
    from .driver import Context, Driver, copy_out, fill

    context, size = Context(Driver()), 1 << 20
    address = context.allocate(size)
    fill(context, address, 0x5A, size)
    context.launch_fused(4, 10)
    context.launch_numbers(size // 2 // 1024, address)
    context.synchronize()
    print(hashlib.sha256(copy_out(context, address, size)).hexdigest())


def cudart():
    """The CUDA runtime as a shared library, the one that PyTorch brings: what it says of itself, and what comes back of
    bytes that it has copied to the device and of some that it has set there."""
    import ctypes
    import glob
    import os

    torch = needs("torch")
    site = os.path.dirname(os.path.dirname(torch.__file__))
    found = glob.glob(f"{site}/nvidia/**/libcudart.so*", recursive=True) + glob.glob("/usr/local/cuda/lib64/libcudart.so")
    if not found:
        print("no libcudart.so here")
        sys.exit(SKIPPED)
    runtime = ctypes.CDLL(found[0])
    values = []
    for name in ("cudaDriverGetVersion", "cudaRuntimeGetVersion", "cudaGetDeviceCount"):
        value = ctypes.c_int()
        values.append((name, getattr(runtime, name)(ctypes.byref(value)), value.value))
    print(values)
    size, place = 1 << 20, ctypes.c_void_p()
    half, there = ctypes.c_size_t(size // 2), ctypes.create_string_buffer(bytes(range(256)) * (size // 256), size)
    back = ctypes.create_string_buffer(size)
    to_the_device, to_the_host = ctypes.c_int(1), ctypes.c_int(2)
    codes = [runtime.cudaMalloc(ctypes.byref(place), ctypes.c_size_t(size)),
             runtime.cudaMemcpy(place, there, ctypes.c_size_t(size), to_the_device),
             runtime.cudaMemset(place, ctypes.c_int(0x5A), half),
             runtime.cudaMemcpy(back, place, ctypes.c_size_t(size), to_the_host),
             runtime.cudaFree(place)]
    print(codes, hashlib.sha256(back.raw).hexdigest())
    if any(codes):
        sys.exit(f"the runtime answers {codes}")


def torch():
    torch = needs("torch")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Flatten(),
                                torch.nn.Linear(16 * 30 * 30, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images = torch.rand(8, 3, 32, 32).cuda()
    for _ in range(3):
        optimizer.zero_grad()
        model(images).square().mean().backward()
        optimizer.step()
    print(digest(torch.cat([p.detach().flatten() for p in model.parameters()]).cpu().numpy()))


def compile():
    torch = needs("torch")
    torch.manual_seed(7)
    function = torch.compile(lambda x: (torch.sin(x) * x + 2).sum(dim=1))
    print(digest(function(torch.rand(256, 256).cuda()).cpu().numpy()))


def graph():
    torch = needs("torch")
    torch.manual_seed(7)
    x, out = torch.rand(512, 512).cuda(), torch.empty(512, 512, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.mm(x, x, out=out)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        torch.mm(x, x, out=out)
        out.mul_(0.5)
    for _ in range(3):
        captured.replay()
    torch.cuda.synchronize()
    print(digest(out.cpu().numpy()))


def triton():
    torch, triton = needs("torch"), needs("triton")
    from .triton_kernel import double

    x = torch.arange(4096, dtype=torch.float32).cuda()
    out = torch.empty_like(x)
    double[(4,)](x, out, BLOCK=1024)
    print(digest(out.cpu().numpy()), triton.__version__)


def _child(queue, tensor):
    tensor.add_(1)
    queue.put(True)


def processes():
    """Two processes and a tensor that one makes and the other changes (CUDA IPC)."""
    torch = needs("torch")
    multiprocessing = __import__("torch.multiprocessing", fromlist=["x"])
    context = multiprocessing.get_context("spawn")
    tensor, queue = torch.zeros(1 << 20, device="cuda"), context.Queue()
    process = context.Process(target=_child, args=(queue, tensor))
    process.start()
    queue.get(timeout=60)
    process.join()
    torch.cuda.synchronize()
    print(digest(tensor.cpu().numpy()))


def numba():
    numpy = needs("numpy")
    if not hasattr(numpy, "row_stack"):
        # numpy has dropped the old name of this function, for which releases of numba ask when they are imported.
        numpy.row_stack = numpy.vstack
    needs("numba")
    from numba import cuda

    @cuda.jit
    def add(x, y):
        at = cuda.grid(1)
        if at < x.size:
            y[at] = x[at] + 1

    x = cuda.to_device(numpy.arange(1024, dtype=numpy.float32))
    y = cuda.device_array_like(x)
    add[4, 256](x, y)
    print(digest(y.copy_to_host()))


def cupy():
    cupy = needs("cupy")
    x = cupy.arange(1 << 16, dtype=cupy.float32)
    print(digest(cupy.asnumpy((x * x + 1).reshape(256, 256).sum(axis=0))))


def jax():
    import os

    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    # Else it chooses kernels by measuring them, and computes otherwise each time.
    os.environ["XLA_FLAGS"] = "--xla_gpu_autotune_level=0"
    jax = needs("jax")
    import numpy

    result = jax.jit(lambda x: (x @ x.T).sum(axis=0))(numpy.arange(65536, dtype=numpy.float32).reshape(256, 256) / 65536)
    print(jax.devices()[0].platform, digest(numpy.asarray(result)))


if __name__ == "__main__":
    {f.__name__: f for f in (driver, cudart, torch, compile, graph, triton, processes, numba, cupy, jax)}[sys.argv[1]]()
    libraries.tell()
