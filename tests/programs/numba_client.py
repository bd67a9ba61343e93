"""What a person does with numba: memory information, a kernel compiled at run time, copies, launches, too much memory."""

import json
import sys
import warnings

warnings.filterwarnings("ignore")

import numpy
from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError

launches, too_much = int(sys.argv[1]), int(sys.argv[2])


@cuda.jit
def scale(values, factor):
    index = cuda.grid(1)
    if index < values.size:
        values[index] *= factor


free, total = cuda.current_context().get_memory_info()
host = numpy.arange(1 << 20, dtype=numpy.float32)
device = cuda.to_device(host)
for _ in range(launches):
    scale[4096, 1024](device, 2.0)
cuda.synchronize()
came_back = device.copy_to_host()
pinned = cuda.pinned_array(host.shape, host.dtype)
device.copy_to_host(pinned)
held = cuda.current_context().get_memory_info()
try:
    cuda.device_array(too_much, dtype=numpy.uint8)
    refused = "nothing"
except CudaAPIError as error:
    refused = str(error)
print(json.dumps({
    "total": total,
    "free": free,
    "free_with_data": held.free,
    "bytes": device.nbytes,
    "data_came_back": bool((came_back == host).all() and (pinned == host).all()),
    "refused": refused,
}))
