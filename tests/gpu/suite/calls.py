"""What single calls cost through the shim beside the same calls of the driver's library, and blocks of short kernels: one process makes
both in turn, so that both meet the same machine, the same clocks and the same device."""

import os

from .host import OLD_LIBC, wait_until_free
from .record import interval, median
from .tenant import Tenants

# What is built for it, which prints one line of JSON; and what has it measure blocks too.
PROGRAM, WITH_BLOCKS = "bin/gpool-launch-cost", "--blocks"
# Some 15 s, if a launch takes 2 us.
PATIENCE_S = 40
SHARE = ["--fraction", "1", "--memory", "1GiB", "--key", "mode=slice"]
# What it calls each kind of call, of which it tells the nanoseconds in each block through the shim, and past it: a launch; four
# launches and a wait for all; a launch, an event behind it and a wait for the event of three before; a call that the shim only
# passes on. In all but the last are the looks at the thread's own clock, on both sides.
KINDS = {"launch": "launch", "wait": "wait", "event": "step", "passed_on": "version"}
# How it waits for the kernels of a block: for the last one; after each fourth for all; after each for the one three before.
WAITS = ["free", "wait", "event"]


def measure(suite):
    """Nothing else of the suite's may be on the device."""
    program = os.path.join(os.path.abspath(suite.options.bundle), PROGRAM)
    if why := unfit(suite, program):
        suite.record.note(f"cost.call.* are left out: {why}")
        return
    # All of the GPU is wanted.
    wait_until_free()
    with Tenants() as tenants:
        told = tenants.start("calls", SHARE, command=[program, WITH_BLOCKS]).hear(PATIENCE_S)
        figures(suite.record, told)
        blocks(suite.record, told["blocks"])


def unfit(suite, program):
    """Why it cannot be run here, or None."""
    if not os.path.exists(program):
        return f"there is no {program}"
    # It would find the driver by a loader that is not this machine's, which nobody has tried.
    return OLD_LIBC if suite.host.has_old_libc else None


def figures(record, told):
    """What each call takes more, in the middle of the blocks: each block through the shim stands beside the one past it that
    came before it or after it."""
    for name, key in KINDS.items():
        ours, native = told[f"{key}_ns"], told[f"{key}_native_ns"]
        added = [with_shim - without for with_shim, without in zip(ours, native)]
        detail = {"interval": interval(added), "blocks": len(added), "through_the_shim": median(ours)}
        record.figure(f"cost.call.{name}", median(added), "ns", median(native), None, detail)


def blocks(record, told):
    """What blocks of kernels that do a fixed amount of arithmetic take more until the last has ended, by the clock on the wall: by how
    long a kernel is, and how they are waited for."""
    for length, of in told.items():
        for name in WAITS:
            ours, native = of[f"{name}_ns"], of[f"{name}_native_ns"]
            ratios = [with_shim / without for with_shim, without in zip(ours, native)]
            detail = {"interval": interval(ratios), "blocks": len(ratios), "ns": median(ours), "native_ns": median(native)}
            record.figure(f"cost.block.{length}.{name}", median(ratios), "ratio", 1.0, None, detail)
