"""Every allocator up to the cap, the driver's view from outside, what SIGKILL gives back, and residue."""

import time

from .. import hami
from ..driver import OUT_OF_MEMORY
from ..host import leases
from ..tenant import TenantError, Tenants

SECONDS = 70
GIB = 1 << 30
ALLOCATORS = ["cuMemAlloc", "cuMemAllocManaged", "cuMemCreate", "cuMemAllocAsync", "cuArrayCreate"]
PATTERN = 0xA7


def run(suite):
    cap = 4 if suite.simulated else 8
    for allocator in ALLOCATORS:
        to_the_cap(suite, allocator, cap)
        if suite.hami:
            try:
                beside_hami(suite, allocator, cap)
            except TenantError as error:  # Ours still count.
                suite.record.note(f"HAMi-core, {allocator}: {error}")
    killed(suite)
    residue(suite)


def to_the_cap(suite, allocator, cap):
    """Four times the cap is asked for, a GiB at a time."""
    with Tenants() as tenants:
        before = suite.nvml.used_bytes()
        tenant = tenants.start(allocator, ["--fraction", "0.5", "--memory", f"{cap}GiB"])
        shown = tenant.ask("memory")
        context = shown["total"] - shown["free"]
        filled = tenant.ask("fill_up", allocator=allocator, piece=GIB, most=4 * cap)
        time.sleep(0.3)
        outside = suite.nvml.used_bytes() - before
        expected = (cap * GIB - context) // GIB
        record = suite.record
        record.figure(f"memory.{allocator}.pieces", filled["pieces"], "GiB", aim=f"== {expected}", detail=filled)
        record.figure(f"memory.{allocator}.over_cap", max(0, outside - cap * GIB), "bytes", aim="<= 0",
                      detail={"outside": outside, "context": context, "told": shown["total"]})
        if filled["code"] != OUT_OF_MEMORY:
            record.note(f"{allocator}: refused with code {filled['code']} instead of {OUT_OF_MEMORY}")


def beside_hami(suite, allocator, cap):
    """The same under HAMi-core: what it let through above its cap, by the driver's own figure."""
    with Tenants() as tenants:
        before = suite.nvml.used_bytes()
        tenant = hami.start(suite, tenants, allocator, 50, cap)
        filled = tenant.ask("fill_up", allocator=allocator, piece=GIB, most=4 * cap)
        time.sleep(0.3)
        outside = suite.nvml.used_bytes() - before
        record = suite.record
        record.figure(f"memory.{allocator}.hami_pieces", filled["pieces"], "GiB", detail=filled)
        record.figure(f"memory.{allocator}.hami_over_cap", max(0, outside - cap * GIB), "bytes")


def killed(suite):
    """SIGKILL to a process that holds memory: until the device has it back, and until the lease is gone."""
    with Tenants() as tenants:
        before = suite.nvml.used_bytes()
        tenant = tenants.start("killed", ["--fraction", "0.5", "--memory", "4GiB"])
        tenant.ask("hold", size=2 * GIB)
        tenant.kill()
        begun = time.monotonic()
        wait = lambda done: next((time.monotonic() - begun for _ in range(500) if done() or time.sleep(0.01)), float("inf"))
        free = wait(lambda: suite.nvml.used_bytes() <= before + (64 << 20))
        gone = wait(lambda: not leases())
        suite.record.figure("kill.free", free * 1e3, "ms", aim="<= 1000")
        suite.record.figure("kill.lease", gone * 1e3, "ms")


def residue(suite):
    """Does fresh memory ever show what another tenant wrote? What is seen is reported, not promised."""
    if suite.simulated:
        suite.record.note("residue: skipped, simulated memory holds nothing")
        return
    with Tenants() as tenants:
        writer = tenants.start("writer", ["--fraction", "0.5", "--memory", "8GiB"])
        writer.ask("hold", size=4 * GIB, byte=PATTERN)
        writer.end()
        reader = tenants.start("reader", ["--fraction", "0.5", "--memory", "8GiB"])
        found = reader.ask("residue", size=4 * GIB, byte=PATTERN)
        suite.record.figure("memory.residue", found["found"], "bytes", detail=found)
