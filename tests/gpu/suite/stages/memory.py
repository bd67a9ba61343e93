"""Every allocator up to the cap, the driver's view from outside, what SIGKILL gives back, and residue."""

import collections
import time

from .. import hami
from ..driver import OUT_OF_MEMORY
from ..host import leases, wait_until_free
from ..sections import Sections
from ..tenant import TenantError, Tenants

SECONDS = 40
GIB = 1 << 30
# Pieces of each size are taken until one is refused: what is above a cap may be less than a GiB.
PIECES = [GIB, 64 << 20, 2 << 20]
# An allocator of its own above the driver's, and what a tensor of it takes.
TORCH, TENSOR = "torch", 64 << 20
# So many leases until the supervisor has learnt what a context costs, how long they stay for it to look twice, and what
# they hold. The first of them is alone for as long as it looks three times: what the device has for a context that NVML lists
# for nobody is more for one alone.
LEARNING, LEARNING_S, LEARNING_BYTES, ALONE_S = 3, 2.5, 64 << 20, 3.5
ALLOCATORS = ["cuMemAlloc", "cuMemAllocManaged", "cuMemAllocPitch", "cuMemCreate", "cuMemAllocAsync",
              "cuMemAllocFromPoolAsync", "cuGraphAddMemAllocNode", "cuArrayCreate"]
# What a driver may be without.
NOT_EVERYWHERE = ["cuGraphAddMemAllocNode", "cuMemAllocFromPoolAsync"]
# Of the device's memory so much is left alone where it is written to.
SPARED_BYTES = 4 * GIB
PATTERN = 0xA7
# What the writer and the reader of residue take at a time, and of that read one part after each step.
RESIDUE_PIECE, RESIDUE_PART, RESIDUE_STEP = GIB, 1 << 20, 64 << 20

# A lease up to its cap, in bytes: what was said of each size of piece; what the driver sees of it from outside; what its
# context costs by its own account, and as it is seen from outside; and the whole that it is shown.
Filled = collections.namedtuple("Filled", "said outside context context_outside told")


def run(suite):
    cap, sections = 4 if suite.simulated else 8, Sections(suite.record)
    with sections.one("before_learnt"):
        before_learnt(suite, cap)
    with sections.one("learning"):
        learn(suite)
    with sections.one("context"):
        context(suite)
    for allocator in [*ALLOCATORS, *([TORCH] if suite.has_torch else [])]:
        with sections.one(allocator):
            to_the_cap(suite, allocator, cap)
        if suite.hami and allocator != TORCH:
            try:
                beside_hami(suite, allocator, cap)
            except TenantError as error:  # Ours still count.
                suite.record.note(f"HAMi-core, {allocator}: {error}")
    with sections.one("kill"):
        killed(suite)
    with sections.one("residue"):
        residue(suite)
    sections.end()


def before_learnt(suite, cap):
    """The first lease of a supervisor that has seen no context yet: what is above its cap then may be one at most."""
    if not suite.host.is_own:
        suite.record.note("memory.before_learnt is left out: the supervisor ran already and may have learnt")
        return
    suite.host.restart()
    filled = filled_lease(suite, "cuMemAlloc", cap)
    above, aim = filled.outside - cap * GIB, f"<= {filled.context_outside}"
    suite.record.figure("memory.before_learnt.over_cap", above, "bytes", aim=aim, detail=filled._asdict())


def learn(suite):
    """Leases to be thrown away, from which the supervisor learns what a context costs: until then a cap may be passed by
    what one costs more than it assumes."""
    with Tenants() as tenants:
        for index in range(LEARNING):
            tenant = tenants.start(f"learning{index}", ["--fraction", "0.1", "--memory", "2GiB"])
            tenant.ask("hold", size=LEARNING_BYTES)
            if index == 0:
                time.sleep(ALONE_S)
        time.sleep(LEARNING_S)


def context(suite):
    """What a process with a context and nothing else takes of the device, with a share and plainly."""
    taken = []
    for name, share in (("share", ["--fraction", "0.5", "--memory", "4GiB"]), ("plain", None)):
        with Tenants() as tenants:
            before = used(suite)
            tenants.start(name, share).ask("memory")
            taken.append(used(suite) - before)
    suite.record.figure("memory.context_outside", taken[0], "bytes", taken[1])


def to_the_cap(suite, allocator, cap):
    """What is beside the cap, by the driver's own figure, once more was asked for by that allocator."""
    filled, record = filled_lease(suite, allocator, cap), suite.record
    if filled is None:
        return
    if allocator != TORCH:
        aim = f"== {(cap * GIB - filled.context) // GIB}"
        record.figure(f"memory.{allocator}.pieces", filled.said[0]["pieces"], "GiB", aim=aim, detail=filled.said)
    record.figure(f"memory.{allocator}.over_cap", filled.outside - cap * GIB, "bytes", aim="<= 0", detail=filled._asdict())
    for step in filled.said:
        if step["code"] != OUT_OF_MEMORY:
            record.note(f"{allocator}: after {step['pieces']} pieces of {step['piece']} bytes the code is "
                        f"{step['code']} instead of {OUT_OF_MEMORY}")


def filled_lease(suite, allocator, cap):
    """One that was asked four times its cap, as it stands then; None where that cannot be asked here."""
    with Tenants() as tenants:
        before = used(suite)
        tenant = tenants.start(allocator, ["--fraction", "0.5", "--memory", f"{cap}GiB"])
        shown = tenant.ask("memory", by_torch=allocator == TORCH)
        context_outside = used(suite) - before
        said = fill(suite, tenant, allocator, cap)
        return said and Filled(said, used(suite) - before, shown["total"] - shown["free"], context_outside, shown["total"])


def fill(suite, tenant, allocator, cap):
    """Takes pieces of each size until one is refused; what was said of each size, or None where this cannot be done here,
    which is noted. Who is refused none has no cap."""
    if allocator == TORCH:
        return [tenant.ask("fill_up_torch", piece=TENSOR, most=4 * cap * GIB // TENSOR)]
    # Managed memory is nowhere before it is written to.
    byte, most = (1 if allocator == "cuMemAllocManaged" and not suite.simulated else None), 4 * cap
    if byte is not None:
        # What is written beyond what the device has goes to the host, and pushes out what others have.
        most = min(most, (suite.nvml.free_bytes() - SPARED_BYTES) // GIB)
        if most <= cap:
            suite.record.note(f"{allocator}: skipped, with {most} GiB at most nobody would see a cap of {cap}")
            return None
    said = []
    # Of the smaller ones more than fit into a greater one.
    for piece, pieces in zip(PIECES, [most, 64, 64]):
        said.append(tenant.ask("fill_up", allocator=allocator, piece=piece, most=pieces, byte=byte))
        if allocator in NOT_EVERYWHERE and said[-1]["code"] not in (0, OUT_OF_MEMORY) and not said[0]["pieces"]:
            suite.record.note(f"{allocator}: not supported here, code {said[-1]['code']}")
            return None
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
        tenant = hami.start(suite, tenants, {allocator: (50, cap)})[0]
        filled = fill(suite, tenant, allocator, cap)
        if filled is None:
            return
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
        gone = wait(lambda: not any(its["container_id"].startswith(tenant.lease) for its in leases()))
        suite.record.figure("kill.free", free * 1e3, "ms", aim="<= 1000")
        suite.record.figure("kill.lease", gone * 1e3, "ms")


def residue(suite):
    """Does fresh memory ever show what another tenant wrote? What is seen is reported, not promised."""
    if suite.simulated:
        suite.record.note("residue: skipped, simulated memory holds nothing")
        return
    pieces = (suite.nvml.free_bytes() - 2 * SPARED_BYTES) // RESIDUE_PIECE
    share = ["--fraction", "0.5", "--memory", "90%"]
    with Tenants() as tenants:
        writer = tenants.start("writer", share)
        written = writer.ask("fill_up", allocator="cuMemAlloc", piece=RESIDUE_PIECE, most=pieces, byte=PATTERN)
        writer.end()
        # Both want nearly all of it.
        wait_until_free()
        reader = tenants.start("reader", share)
        found = reader.ask("residue", piece=RESIDUE_PIECE, most=written["pieces"], part=RESIDUE_PART, step=RESIDUE_STEP,
                           byte=PATTERN)
        detail = {**found, "written": written, "piece": RESIDUE_PIECE, "of_the_device": suite.nvml.total_bytes()}
        suite.record.figure("memory.residue_sampled", found["found"], "bytes", detail=detail)
