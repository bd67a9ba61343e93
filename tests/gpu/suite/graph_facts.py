"""What a driver does with the memory that graphs allocate: what gpool takes for granted, and documents leave open."""

import ctypes
import time
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p

MIB = 1 << 20
USED, RESERVED = 0, 2
# Behind which an upload is asked for.
BUSY_NS = 300_000_000
ALLOCATES, FREES = 10, 11


class Graphs:
    """Graphs of one context, in its stream."""

    def __init__(self, context):
        self.context, self.call = context, context.driver.call

    def figure(self, which):
        value = c_uint64()
        self.call("cuDeviceGetGraphMemAttribute", c_int(0), c_int(which), byref(value))
        return value.value

    def trimmed(self):
        self.context.synchronize()
        self.call("cuDeviceGraphMemTrim", c_int(0))
        return self.figure(RESERVED)

    def of(self, sizes, is_in_turn):
        """A graph that allocates pieces, and frees each before the next if `is_in_turn`, else all at its end; ready to be
        launched, with the types of its nodes as the driver lists them."""
        graph, ready, stream = c_void_p(), c_void_p(), self.context.stream
        self.call("cuStreamBeginCapture_v2", stream, c_int(2))
        addresses = []
        for size in sizes:
            addresses.append(c_uint64())
            self.call("cuMemAllocAsync", byref(addresses[-1]), c_size_t(size), stream)
            if is_in_turn:
                self.call("cuMemFreeAsync", addresses.pop(), stream)
        for address in reversed(addresses):
            self.call("cuMemFreeAsync", address, stream)
        self.call("cuStreamEndCapture", stream, byref(graph))
        self.call("cuGraphInstantiateWithFlags", byref(ready), graph, ctypes.c_ulonglong(0))
        return ready, self.types(graph)

    def types(self, graph):
        count = c_size_t()
        self.call("cuGraphGetNodes", graph, None, byref(count))
        nodes = (c_void_p * count.value)()
        self.call("cuGraphGetNodes", graph, nodes, byref(count))
        found = []
        for node in nodes:
            kind = c_int()
            self.call("cuGraphNodeGetType", c_void_p(node), byref(kind))
            found.append(kind.value)
        return found

    def launch(self, ready, times=1):
        for _ in range(times):
            self.context.launch_graph(ready)
        self.context.synchronize()
        return self.figure(RESERVED)


def facts(context):
    """All of them, in bytes and milliseconds."""
    graphs, said = Graphs(context), {"before": None}
    said["before"] = graphs.trimmed()
    in_turn, types = graphs.of([256 * MIB] * 8, True)
    said["in_turn_types"] = types
    # 2 GiB in sum, 256 MiB at once.
    said["in_turn_reserved"] = graphs.launch(in_turn)
    said["in_turn_used_between_launches"] = graphs.figure(USED)
    said["in_turn_again"] = graphs.launch(in_turn, 20)
    together, types = graphs.of([64 * MIB] * 8, False)
    said["together_types"] = types
    # 512 MiB at once; the stream keeps 256 from the other one.
    said["together_reserved"] = graphs.launch(together)
    graphs.launch(in_turn, 5)
    said["alternating_reserved"] = graphs.launch(together, 5)
    small, _ = graphs.of([4096] * 100, False)
    said["after_trim"] = graphs.trimmed()
    said["small_reserved"] = graphs.launch(small)
    said["before_upload"] = graphs.trimmed()
    # Is what an upload maps told of before the stream has come to it, and does the call wait for that?
    context.launch_spin(BUSY_NS)
    begun = time.monotonic()
    graphs.call("cuGraphUpload", together, context.stream)
    said["upload_ms"] = (time.monotonic() - begun) * 1e3
    said["upload_reserved_at_once"] = graphs.figure(RESERVED)
    context.synchronize()
    said["upload_reserved_afterwards"] = graphs.figure(RESERVED)
    begun = time.monotonic()
    graphs.launch(together)
    said["launch_after_upload_ms"] = (time.monotonic() - begun) * 1e3
    graphs.trimmed()
    begun = time.monotonic()
    graphs.launch(together)
    said["first_launch_ms"] = (time.monotonic() - begun) * 1e3
    said["at_the_end"] = graphs.trimmed()
    return said
