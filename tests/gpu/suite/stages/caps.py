"""What the driver's own limit makes of a cap, from 615 on: for who goes past the shim, how it rounds, what it counts, what it costs."""

import json
import os
import tempfile
import time

from ..driver import OUT_OF_MEMORY
from ..host import gpool, lease
from ..libraries import BEHIND_A_SHIM
from ..nvml import LimitError
from ..record import Skipped
from ..tenant import TenantError, Tenants

SECONDS = 15
GIB = 1 << 30
CAP_GIB = 4
# Of no round size, to see how limits are rounded.
ODD_BYTES = 3 * GIB + 12345 * 4096
# As in the stage `memory`.
PIECES = [GIB, 64 << 20, 2 << 20]
CALLS = 200
# Until the device's figures are those of now.
SETTLED_S = 0.5


def run(suite):
    with Tenants() as tenants:
        tenant = tenants.start("limited", ["--fraction", "0.3", "--memory", str(ODD_BYTES)])
        before = suite.nvml.used_bytes()
        tenant.ask("memory")
        time.sleep(SETTLED_S)
        its, gpu = lease(tenant.lease), json.loads(gpool("gpu", "ls", "--format", "json"))["gpus"][0]
        limits = gpu.get("memory_limits")
        limit = its["gpus"][0].get("memory_limit_bytes")
        if limit is None:
            raise Skipped(f"the driver keeps no limit: {limits and limits['told']}")
        suite.record.figure("caps.rounded_up", limit - its["memory_cap_bytes"], "bytes", aim=">= 0", detail=limits)
        by_hand(suite, f"/sys/fs/cgroup{its['cgroup']}", limit, suite.nvml.used_bytes() - before)
    past(suite)


def by_hand(suite, group, limit, context):
    """What NVML says of the limit, what of a context is in it, and how long the calls take."""
    record, nvml = suite.record.figure, suite.nvml
    told = nvml.memory_limit(group)
    record("caps.told", told["hard"] - limit, "bytes", aim="== 0", detail=told)
    record("caps.context_counted", told["used"], "bytes", context)
    for name, call in (("set", lambda: nvml.set_memory_limit(group, limit)), ("get", lambda: nvml.memory_limit(group))):
        begun = time.monotonic()
        for _ in range(CALLS):
            call()
        record(f"caps.{name}", (time.monotonic() - begun) / CALLS * 1e6, "us")
    try:
        nvml.memory_limit("/sys/fs/cgroup/there/is/no/such/group")
        suite.record.note("caps: NVML tells a limit of a cgroup that is not there")
    except LimitError:
        pass


def past(suite):
    """What who goes past the shim has above its cap, by the driver's own figure, once more was asked for."""
    with tempfile.TemporaryDirectory() as found_first, Tenants() as tenants:
        os.symlink(f"{BEHIND_A_SHIM}libcuda.so.1", f"{found_first}/libcuda.so.1")
        os.chmod(found_first, 0o755)
        # Set for the worker alone: a start with another driver in its way is refused.
        around = ["/usr/bin/env", f"LD_LIBRARY_PATH={found_first}"]
        tenant = tenants.start("past", ["--fraction", "0.3", "--memory", f"{CAP_GIB}GiB"], around=around)
        before = suite.nvml.used_bytes()
        shown = tenant.ask("memory")
        if not all(path.startswith(BEHIND_A_SHIM) for path in shown["libraries"]):
            raise TenantError(f"it is to go past the shim, and has {shown['libraries']}")
        suite.record.figure("caps.past.shown", shown["total"] - CAP_GIB * GIB, "bytes", detail=shown)
        fill = lambda piece, most: tenant.ask("fill_up", allocator="cuMemAlloc", piece=piece, most=most)
        said = [fill(piece, most) for piece, most in zip(PIECES, [4 * CAP_GIB, 64, 64])]
        time.sleep(SETTLED_S)
        above = suite.nvml.used_bytes() - before - CAP_GIB * GIB
        suite.record.figure("caps.past.over_cap", above, "bytes", aim="<= 0", detail=said)
        for step in said:
            if step["code"] != OUT_OF_MEMORY:
                suite.record.note(f"caps: past the shim the code is {step['code']} instead of {OUT_OF_MEMORY}")
