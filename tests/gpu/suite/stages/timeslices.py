"""Shares that the hardware keeps by time slices, set from outside: the same work as in `shares`, without shims."""

import json
import time

from ..host import events, gpool, leases
from ..tenant import Tenants, prepare, solo_rates
from .shares import together

SECONDS = 95
GIB = 1 << 30
# How long the trial of the hardware may take from the start of the supervisor.
TRIAL_S = 60


def share(fraction):
    return ["--fraction", fraction, "--key", "mode=timeslice"]


def run(suite):
    told = tried(TRIAL_S)
    suite.record.note(f"timeslices: {told}")
    if not any((gpu.get("time_slices") or {}).get("kept") for gpu in gpus()):
        return
    work = suite.choose("torch-matmul:4096", "fused:2048:4000", "spin:500000")
    with Tenants() as tenants:
        a, b, c = (tenants.start(name, share(part)) for name, part in zip("abc", ("0.3", "0.6", "0.1")))
        trio = [(tenant, work) for tenant in (a, b, c)]
        prepare(trio)
        levels = {lease["enforcement"] for lease in leases()}
        suite.record.figure("timeslices.level", ",".join(sorted(levels)), "")
        solo = dict(zip("abc", solo_rates(trio, 1.5)))
        # Once a second the slices are looked at; the first look is behind.
        time.sleep(1.5)
        together(suite, "timeslices_30_60_10", [(a, work, 0.3), (b, work, 0.6), (c, work, 0.1)], solo, suite.seconds(10))
        end(c)
        effect(suite, a, b, work, solo)
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


def gpus():
    said = json.loads(gpool("gpu", "ls", "--format", "json"))
    return said if isinstance(said, list) else said["gpus"]


def end(tenant, patience_s=20):
    """Ends it, and waits until its share is free: that may be kept for a while."""
    lease = tenant.lease
    tenant.end()
    deadline = time.monotonic() + patience_s
    while any(its["container_id"].startswith(lease) for its in leases()) and time.monotonic() < deadline:
        time.sleep(0.1)


def tried(patience_s):
    """What the trial of the GPU says, once it has ended."""
    deadline = time.monotonic() + patience_s
    while True:
        said = [event["message"] for event in events() if event["kind"] == "time-slices-tried"]
        if said or time.monotonic() > deadline:
            return said[-1] if said else f"the hardware was not tried within {patience_s} s"
        time.sleep(0.5)


def effect(suite, a, b, work, solo):
    """From `gpool update` to the first second within two points of the new shares."""
    from ..worker import now_ns

    gpool("update", a.lease, "--fraction", "0.4")
    time.sleep(1.5)
    begin = now_ns() + 50_000_000
    for tenant in (a, b):
        tenant.tell("run", work=work, begin_ns=begin, end_ns=begin + 5_000_000_000, depth=4)
    time.sleep(2)
    gpool("update", a.lease, "--fraction", "0.2")
    gpool("update", b.lease, "--fraction", "0.8")
    changed = (now_ns() - begin) // 100_000_000
    counts = [tenant.hear(30)["counts"] for tenant in (a, b)]
    for start in range(changed, len(counts[0]) - 10):
        parts = [sum(c[start:start + 10]) / solo[name] for c, name in zip(counts, "ab")]
        if sum(parts) and abs(parts[0] / sum(parts) - 0.2) <= 0.02:
            suite.record.figure("timeslices.update_effect", (start - changed) * 100, "ms", aim="<= 1000")
            return
    suite.record.figure("timeslices.update_effect", float("inf"), "ms", aim="<= 1000")


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
