"""cuda.core: a kernel of C++ compiled at run time, buffers, copies through page-locked memory, launches, too much memory."""

import json
import sys

import numpy
from cuda.bindings import driver
from cuda.core import Device, LaunchConfig, LegacyPinnedMemoryResource, Program, ProgramOptions, launch

launches, too_much = int(sys.argv[1]), int(sys.argv[2])
KERNEL_NS = 1_000_000
SOURCE = 'extern "C" __global__ void spin_ns(unsigned long long duration) {}'

device = Device()
device.set_current()
_, free, total = driver.cuMemGetInfo()
options = ProgramOptions(std="c++17", arch=f"sm_{device.arch}")
kernel = Program(SOURCE, code_type="c++", options=options).compile("cubin").get_kernel("spin_ns")
stream, other = device.create_stream(), device.create_stream()
for _ in range(launches):
    launch(stream, LaunchConfig(grid=1, block=1), kernel, numpy.uint64(KERNEL_NS))
other.wait(stream.record())
other.sync()
size = 4 << 20
pinned = [LegacyPinnedMemoryResource().allocate(size) for _ in range(2)]
sent, back = (numpy.from_dlpack(buffer).view(numpy.uint8) for buffer in pinned)
sent[:] = numpy.arange(size, dtype=numpy.uint64).astype(numpy.uint8)
buffer = device.memory_resource.allocate(size, stream=stream)
buffer.copy_from(pinned[0], stream=stream)
buffer.copy_to(pinned[1], stream=stream)
stream.sync()
held = driver.cuMemGetInfo()[1]
try:
    device.memory_resource.allocate(too_much, stream=stream)
    refused = "nothing"
except Exception as error:
    refused = str(error)
print(json.dumps({
    "total": total,
    "free": free,
    "free_with_data": held,
    "bytes": size,
    "data_came_back": bool((sent == back).all()),
    "refused": refused,
}))
