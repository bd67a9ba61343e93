"""Shares that the hardware keeps by time slices, set from outside: the same work as in `shares`, without shims."""

import os
import time

from ..host import gpool, leases, supervisor_pid
from ..record import Skipped
from ..tenant import Tenants, prepare, start_plain
from .lending import effect
from .shares import together

SECONDS = 85
GIB = 1 << 30


def share(fraction):
    return ["--fraction", fraction, "--key", "mode=timeslice"]


def run(suite):
    verdict = suite.host.verdict
    if not verdict or not verdict["kept"]:
        why = suite.host.lacks or "the supervisor has not tried time slices"
        raise Skipped(verdict["told"] if verdict else why)
    suite.record.note(f"timeslices: {verdict['told']}")
    work = suite.choose("torch-matmul:4096", "fused:2048:4000", "spin:500000")
    # Work without end that never asks anybody: one kernel after the other, each longer than a slice.
    long = suite.choose("torch-matmul:8192", "fused:4096:60000", "spin:30000000")
    with Tenants() as tenants:
        # It computes only while nobody else does: a process without a share would take turns that nothing bounds.
        plain = start_plain(suite, tenants, [work, long])
        a, b, c = (tenants.start(name, share(part)) for name, part in zip("abc", ("0.3", "0.6", "0.1")))
        prepare([(tenant, work) for tenant in (a, b, c)])
        # Once a second the slices are looked at; the first look is behind.
        time.sleep(1.5)
        levels = {lease["enforcement"] for lease in leases()}
        suite.record.figure("timeslices.level", ",".join(sorted(levels)), "")
        trio = [(a, work, 0.3), (b, work, 0.6), (c, work, 0.1)]
        together(suite, "timeslices_30_60_10", plain, trio, suite.seconds(10))
        end(c)
        gpool("update", a.lease, "--fraction", "0.4")
        time.sleep(1.5)
        effect(suite, "timeslices.update_effect_within", work, [(a, "0.2"), (b, "0.8")])
        gpool("update", a.lease, "--fraction", "0.1")
        gpool("update", b.lease, "--fraction", "0.9")
        time.sleep(1.5)
        together(suite, "timeslices_10_90", plain, [(a, work, 0.1), (b, work, 0.9)], suite.seconds(6))
        prepare([(a, long), (b, long)])
        gpool("update", b.lease, "--fraction", "0.7")
        gpool("update", a.lease, "--fraction", "0.3")
        time.sleep(1.5)
        together(suite, "timeslices_30_70_long", plain, [(a, long, 0.3), (b, long, 0.7)], suite.seconds(9), False)
        # Their files would be taken for those of who is killed.
        end(a)
        end(b)
        released(suite, tenants)


def end(tenant, patience_s=20):
    """Ends it, and waits until its share is free: that may be kept for a while."""
    lease = tenant.lease
    tenant.end()
    deadline = time.monotonic() + patience_s
    while any(its["container_id"].startswith(lease) for its in leases()) and time.monotonic() < deadline:
        time.sleep(0.1)


def released(suite, tenants):
    """SIGKILL to one whose control file the supervisor has borrowed, at that very moment: its memory must not be kept by
    that. The first look at a process, which takes longest, and later ones."""
    worst, hits = 0.0, 0
    files = lambda: control_files(supervisor_pid())
    own = min(files() for _ in range(100) if time.sleep(0.01) is None)
    for turn in range(4):
        before = suite.nvml.used_bytes()
        tenant = tenants.start(f"killed{turn}", share("0.1"))
        tenant.ask("hold", size=(1 if suite.simulated else 8) * GIB)
        if turn % 2:
            time.sleep(2.5)
        deadline = time.monotonic() + 4
        while not (borrowed := files() > own) and time.monotonic() < deadline:
            pass
        begun = time.monotonic()
        tenant.kill()
        hits += borrowed
        while suite.nvml.used_bytes() > before + (64 << 20) and time.monotonic() < begun + 10:
            time.sleep(0.005)
        worst = max(worst, time.monotonic() - begun)
    suite.record.figure("timeslices.kill_free", worst * 1e3, "ms", aim="<= 1000")
    suite.record.figure("timeslices.kill_free.borrowed", hits, "kills")


def control_files(pid):
    """How many descriptors of the driver's control node a process has."""
    found = 0
    for entry in os.listdir(f"/proc/{pid}/fd"):
        try:
            found += os.readlink(f"/proc/{pid}/fd/{entry}") == "/dev/nvidiactl"
        except OSError:
            continue
    return found
