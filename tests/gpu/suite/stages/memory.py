"""Every allocator up to the cap, the driver's view from outside, what SIGKILL gives back, and residue."""

import time

from .. import hami
from ..driver import OUT_OF_MEMORY
from ..host import leases
from ..tenant import TenantError, Tenants

SECONDS = 27
GIB = 1 << 30
# Pieces of each size are taken until one is refused: what is above a cap may be less than a GiB.
PIECES = [GIB, 64 << 20, 2 << 20]
# So many leases until the supervisor has learnt what a context costs.
LEARNING = 3
ALLOCATORS = ["cuMemAlloc", "cuMemAllocManaged", "cuMemCreate", "cuMemAllocAsync", "cuArrayCreate"]
PATTERN = 0xA7


def run(suite):
    cap = 4 if suite.simulated else 8
    for index, allocator in enumerate(ALLOCATORS):
        to_the_cap(suite, allocator, cap, index < LEARNING)
        if suite.hami:
            try:
                beside_hami(suite, allocator, cap)
            except TenantError as error:  # Ours still count.
                suite.record.note(f"HAMi-core, {allocator}: {error}")
    killed(suite)
    residue(suite)


def to_the_cap(suite, allocator, cap, is_learning):
    """Four times the cap is asked for; what is beside the cap then, by the driver's own figure."""
    with Tenants() as tenants:
        before = used(suite)
        tenant = tenants.start(allocator, ["--fraction", "0.5", "--memory", f"{cap}GiB"])
        shown = tenant.ask("memory")
        context = shown["total"] - shown["free"]
        # What one context costs, and what it may be above its cap by until that is known.
        one_context = used(suite) - before
        filled = fill(suite, tenant, allocator, cap)
        outside = used(suite) - before
        expected = (cap * GIB - context) // GIB
        record = suite.record
        record.figure(f"memory.{allocator}.pieces", filled[0]["pieces"], "GiB", aim=f"== {expected}", detail=filled)
        detail = {"outside": outside, "context": context, "context_outside": one_context, "told": shown["total"]}
        record.figure(f"memory.{allocator}.over_cap", outside - cap * GIB, "bytes",
                      aim=f"<= {one_context if is_learning else 0}", detail=detail)
        for step in filled:
            if step["code"] != OUT_OF_MEMORY:
                record.note(f"{allocator}: after {step['pieces']} pieces of {step['piece']} bytes the code is "
                            f"{step['code']} instead of {OUT_OF_MEMORY}")


def fill(suite, tenant, allocator, cap):
    """Takes pieces of each size until one is refused; what was said of each size. Who is refused none has no cap."""
    # Managed memory is nowhere before it is written to.
    byte = 1 if allocator == "cuMemAllocManaged" and not suite.simulated else None
    said = []
    # Of the smaller ones more than fit into a greater one.
    for piece, most in zip(PIECES, [4 * cap, 64, 64]):
        said.append(tenant.ask("fill_up", allocator=allocator, piece=piece, most=most, byte=byte))
        if said[-1]["code"] == 0:
            break
    return said


def used(suite):
    """What the driver says is used of the device, once it has had the time to know."""
    time.sleep(0.3)
    return suite.nvml.used_bytes()


def beside_hami(suite, allocator, cap):
    """The same under HAMi-core: what it let through above its cap, by the driver's own figure."""
    with Tenants() as tenants:
        before = used(suite)
        tenant = hami.start(suite, tenants, {allocator: 50}, cap)[0]
        filled = fill(suite, tenant, allocator, cap)
        outside = used(suite) - before
        record = suite.record
        record.figure(f"memory.{allocator}.hami_pieces", filled[0]["pieces"], "GiB", detail=filled)
        record.figure(f"memory.{allocator}.hami_over_cap", outside - cap * GIB, "bytes")


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
