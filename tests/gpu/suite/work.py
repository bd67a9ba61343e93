"""What tenants compute. A work has `launch()`, which begins one step and returns at once, `mark()`, which gives
something that `reached(mark)` waits for, asleep if that was asked for, and `name`. What needs PyTorch says so in its
name: torch-*.
"""

from . import driver


class DriverWork:
    """Work through the driver API alone."""

    def __init__(self, context, name, launch):
        self.context, self.name, self.launch = context, name, launch
        # By whether who waits for them sleeps.
        self.free_events = {False: [], True: []}

    def mark(self, is_sleeping=False):
        free = self.free_events[is_sleeping]
        event = free.pop() if free else self.context.event(is_sleeping)
        self.context.record(event)
        return is_sleeping, event

    def reached(self, mark):
        is_sleeping, event = mark
        self.context.wait(event)
        self.free_events[is_sleeping].append(event)


class TorchWork:
    """Work through PyTorch, on its current stream."""

    def __init__(self, torch, name, launch):
        self.torch, self.name, self.launch = torch, name, launch

    def mark(self, is_sleeping=False):
        event = self.torch.cuda.Event(blocking=is_sleeping)
        event.record()
        return event

    def reached(self, event):
        event.synchronize()


class Works:
    """Makes works, each once: contexts, modules and weights stay."""

    def __init__(self):
        self.made, self.context, self.torch = {}, None, None

    def get(self, name):
        if name not in self.made:
            self.made[name] = self._make(name)
        return self.made[name]

    def memory(self):
        """Free and total bytes, as the program is shown them: by PyTorch where that has the context."""
        if self.torch is not None and self.context is None:
            return self.torch.cuda.mem_get_info()
        return self.driver_context().memory()

    def with_torch(self):
        """PyTorch, as all that computes by it has it."""
        import torch

        if self.torch is None:
            torch.backends.cuda.matmul.allow_tf32 = False
            torch.backends.cudnn.allow_tf32 = False
            torch.manual_seed(1)
            self.torch = torch
        return torch

    def driver_context(self):
        if self.context is None:
            self.context = driver.Context(driver.Driver())
        return self.context

    def _make(self, name):
        kind, *values = name.split(":")
        if kind.startswith("torch-"):
            return self._make_torch(name, kind, [int(value) for value in values])
        context, values = self.driver_context(), [int(value) for value in values]
        if kind == "spin":  # spin:NANOSECONDS
            return DriverWork(context, name, lambda: context.launch_spin(values[0]))
        if kind == "spin-beside":  # spin-beside:NANOSECONDS:NANOSECONDS:KERNELS
            return DriverWork(context, name, lambda: context.spin_beside(*values))
        if kind == "spin-in-turn":  # the same
            return DriverWork(context, name, lambda: context.spin_in_turn(*values))
        if kind == "fused":  # fused:BLOCKS:ROUNDS
            return DriverWork(context, name, lambda: context.launch_fused(*values))
        if kind == "spin-graph":  # spin-graph:NANOSECONDS:KERNELS
            ready = context.capture(lambda: context.launch_spin(values[0]), values[1])
            return DriverWork(context, name, lambda: context.launch_graph(ready))
        if kind == "fused-graph":  # fused-graph:BLOCKS:ROUNDS:KERNELS
            ready = context.capture(lambda: context.launch_fused(*values[:2]), values[2])
            return DriverWork(context, name, lambda: context.launch_graph(ready))
        raise ValueError(f"there is no work {name!r}")

    def _make_torch(self, name, kind, values):
        torch = self.with_torch()
        make = {
            "torch-matmul": _matmul,
            "torch-train": _train,
            "torch-decode": _decode,
            "torch-decode-graph": _decode_graph,
            "torch-infer": _infer,
            "torch-infer-graph": _infer_graph,
            "torch-launches": _launches,
        }[kind]
        return TorchWork(torch, name, make(torch, *values))


def _matmul(torch, size):
    """FP32 product of two square matrices of random numbers: zeros run faster than data does."""
    a, b = torch.rand(size, size, device="cuda"), torch.rand(size, size, device="cuda")
    out = torch.empty(size, size, device="cuda")
    return lambda: torch.mm(a, b, out=out)


def _residual(torch, channels):
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(),
                nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels))

        def forward(self, x):
            return torch.relu(x + self.body(x))

    return Block


def _train(torch, batch=32):
    """A training step in the shape of a ResNet: convolutions, batch norms, SGD with momentum."""
    nn, block = torch.nn, _residual(torch, 128)
    model = nn.Sequential(nn.Conv2d(3, 128, 7, stride=2, padding=3), *[block() for _ in range(8)],
                          nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 1000)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = torch.rand(batch, 3, 112, 112, device="cuda")
    labels = torch.randint(0, 1000, (batch,), device="cuda")
    loss = nn.CrossEntropyLoss()

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss(model(images), labels).backward()
        optimizer.step()

    return step


def _decoder(torch, width=1024, layers=12, heads=16, past=512):
    """One token through a transformer with a cache: many small kernels."""
    nn, head = torch.nn, width // heads
    make = lambda inner, outer: nn.Linear(inner, outer, bias=False, device="cuda", dtype=torch.float16)
    stack = [(nn.LayerNorm(width, device="cuda", dtype=torch.float16), make(width, 3 * width), make(width, width),
              nn.LayerNorm(width, device="cuda", dtype=torch.float16), make(width, 4 * width), make(4 * width, width))
             for _ in range(layers)]
    cache = [torch.rand(2, heads, past, head, device="cuda", dtype=torch.float16) for _ in range(layers)]
    token = torch.rand(1, width, device="cuda", dtype=torch.float16)

    @torch.no_grad()
    def step():
        x = token
        for (norm, qkv, out, norm2, up, down), (keys, values) in zip(stack, cache):
            query, key, value = qkv(norm(x)).view(3, heads, 1, head)
            keys[:, -1:], values[:, -1:] = key, value
            weights = torch.softmax(query @ keys.transpose(1, 2) / head ** 0.5, dim=-1)
            x = x + out((weights @ values).reshape(1, width))
            x = x + down(torch.nn.functional.gelu(up(norm2(x))))
        return x

    return step


def _decode(torch):
    return _decoder(torch)


def _decode_graph(torch):
    return _captured(torch, _decoder(torch))


def _captured(torch, step):
    """`step` as a graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def _infer(torch, batch=8):
    """A small model's answer to one request."""
    nn, block = torch.nn, _residual(torch, 64)
    model = nn.Sequential(nn.Conv2d(3, 64, 7, stride=2, padding=3), *[block() for _ in range(4)],
                          nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 1000)).cuda().eval()
    images = torch.rand(batch, 3, 112, 112, device="cuda")

    @torch.no_grad()
    def step():
        model(images)

    return step


def _infer_graph(torch, batch):
    """The same as a graph, as servers run it: the processor launches fast enough for the device."""
    return _captured(torch, _infer(torch, batch))


def _launches(torch, count=1000):
    """The worst case of a launch's cost: kernels that do nothing to speak of."""
    x = torch.zeros(32, device="cuda")

    def step():
        for _ in range(count):
            x.add_(1.0)

    return step
