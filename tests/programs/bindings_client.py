"""The driver's interface through cuda.bindings: memory information, a kernel of PTX, copies, launches, too much memory."""

import ctypes
import json
import sys

import numpy
from cuda.bindings import driver

launches, too_much = int(sys.argv[1]), int(sys.argv[2])
KERNEL_NS = 1_000_000
PTX = b""".version 8.4
.target sm_80
.address_size 64
.visible .entry spin_ns(.param .u64 spin_ns_param_0) { ret; }
\0"""


def check(answer):
    if answer[0] != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(str(answer[0]))
    return answer[1] if len(answer) == 2 else answer[1:]


check(driver.cuInit(0))
device = check(driver.cuDeviceGet(0))
context = check(driver.cuDevicePrimaryCtxRetain(device))
check(driver.cuCtxSetCurrent(context))
free, total = check(driver.cuMemGetInfo())
kernel = check(driver.cuModuleGetFunction(check(driver.cuModuleLoadData(PTX)), b"spin_ns"))
stream = check(driver.cuStreamCreate(0))
before, after = check(driver.cuEventCreate(0)), check(driver.cuEventCreate(0))
check(driver.cuEventRecord(before, stream))
for _ in range(launches):
    check(driver.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, ((KERNEL_NS,), (ctypes.c_uint64,)), 0))
check(driver.cuEventRecord(after, stream))
check(driver.cuStreamSynchronize(stream))
host, back = numpy.arange(1 << 20, dtype=numpy.float32), numpy.zeros(1 << 20, dtype=numpy.float32)
memory = check(driver.cuMemAlloc(host.nbytes))
check(driver.cuMemcpyHtoD(memory, host.ctypes.data, host.nbytes))
check(driver.cuMemcpyDtoH(back.ctypes.data, memory, host.nbytes))
# A graph that allocates and frees, captured: what the stream keeps for it is in the account.
in_graph = 64 << 20
before_graph = check(driver.cuMemGetInfo())[0]
capturing = check(driver.cuStreamCreate(1))
check(driver.cuStreamBeginCapture(capturing, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
check(driver.cuMemFreeAsync(check(driver.cuMemAllocAsync(in_graph, capturing)), capturing))
becomes = int(check(driver.cuStreamGetCaptureInfo(capturing))[2])
graph = check(driver.cuStreamEndCapture(capturing))
ready = check(driver.cuGraphInstantiate(graph, 0))
check(driver.cuGraphLaunch(ready, capturing))
check(driver.cuStreamSynchronize(capturing))
kept = before_graph - check(driver.cuMemGetInfo())[0]
print(json.dumps({
    "graph_is_charged": kept == in_graph and becomes == int(graph),
    "total": total,
    "free": free,
    "free_with_data": check(driver.cuMemGetInfo())[0],
    "bytes": host.nbytes,
    "elapsed_ms": check(driver.cuEventElapsedTime(before, after)),
    "data_came_back": bool((host == back).all()),
    "refused": str(driver.cuMemAlloc(too_much)[0]),
}))
