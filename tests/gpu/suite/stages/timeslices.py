"""Shares that the hardware keeps by time slices, set from outside: the same work as in `shares`, without shims."""

import time

from ..host import gpool, leases, trial
from ..tenant import Tenants, prepare, solo_rates
from .lending import effect
from .shares import together

SECONDS = 95
GIB = 1 << 30


def share(fraction):
    return ["--fraction", fraction, "--key", "mode=timeslice"]


def run(suite):
    verdict = trial()
    suite.record.note(f"timeslices: {verdict['told'] if verdict else 'not tried'}")
    if not verdict or not verdict["kept"]:
        return
    work = suite.choose("torch-matmul:4096", "fused:2048:4000", "spin:500000")
    with Tenants() as tenants:
        a, b, c = (tenants.start(name, share(part)) for name, part in zip("abc", ("0.3", "0.6", "0.1")))
        trio = [(tenant, work) for tenant in (a, b, c)]
        prepare(trio)
        solo = dict(zip("abc", solo_rates(trio, 1.5)))
        # Once a second the slices are looked at; the first look is behind.
        time.sleep(1.5)
        levels = {lease["enforcement"] for lease in leases()}
        suite.record.figure("timeslices.level", ",".join(sorted(levels)), "")
        together(suite, "timeslices_30_60_10", [(a, work, 0.3), (b, work, 0.6), (c, work, 0.1)], solo, suite.seconds(10))
        end(c)
        gpool("update", a.lease, "--fraction", "0.4")
        time.sleep(1.5)
        effect(suite, "timeslices.update_effect", work, [(a, solo["a"], "0.2"), (b, solo["b"], "0.8")])
        gpool("update", a.lease, "--fraction", "0.1")
        gpool("update", b.lease, "--fraction", "0.9")
        time.sleep(1.5)
        together(suite, "timeslices_10_90", [(a, work, 0.1), (b, work, 0.9)], solo, suite.seconds(6))
        # Work without end that never asks anybody: one kernel after the other, each far longer than a slice.
        long = suite.choose("torch-matmul:16384", "fused:4096:400000", "spin:200000000")
        pair = [(a, long), (b, long)]
        prepare(pair)
        gpool("update", b.lease, "--fraction", "0.7")
        gpool("update", a.lease, "--fraction", "0.3")
        time.sleep(1.5)
        solo_long = dict(zip("ab", solo_rates(pair, 3)))
        together(suite, "timeslices_30_70_long", [(a, long, 0.3), (b, long, 0.7)], solo_long, suite.seconds(9))
        end(a)
        released(suite, tenants)


def end(tenant, patience_s=20):
    """Ends it, and waits until its share is free: that may be kept for a while."""
    lease = tenant.lease
    tenant.end()
    deadline = time.monotonic() + patience_s
    while any(its["container_id"].startswith(lease) for its in leases()) and time.monotonic() < deadline:
        time.sleep(0.1)


def released(suite, tenants):
    """SIGKILL to one whose control file is borrowed once a second: its memory must not be kept by that."""
    worst = 0.0
    for turn in range(3):
        before = suite.nvml.used_bytes()
        tenant = tenants.start(f"killed{turn}", share("0.1"))
        tenant.ask("hold", size=(1 if suite.simulated else 8) * GIB)
        time.sleep(1.2 + turn / 3)
        begun = time.monotonic()
        tenant.kill()
        while suite.nvml.used_bytes() > before + (64 << 20) and time.monotonic() < begun + 10:
            time.sleep(0.005)
        worst = max(worst, time.monotonic() - begun)
    suite.record.figure("timeslices.kill_free", worst * 1e3, "ms", aim="<= 1000")
