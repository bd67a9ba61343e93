"""Idle time lent and taken back, and how soon a new share acts."""

from ..host import gpool
from ..record import median, percentile
from ..tenant import Tenants, beside_whole, now_ns, prepare, rate, run_together, sleep_until, start_plain

SECONDS = 48
# What a pulse takes beside its pause, at most, as a rule.
PULSE_MS = 15


def run(suite):
    work = suite.choose("torch-matmul:2048", "fused:2048:1000", "spin:500000")
    with Tenants() as tenants:
        # It stays, idle, beside all that follows: it costs the device nothing.
        plain = start_plain(suite, tenants, [work])
        a, b = (tenants.start(name, ["--fraction", "0.5", "--memory", "4GiB"]) for name in "ab")
        prepare([(a, work), (b, work)])
        # The other has a context and nothing to do: what it leaves must be used.
        answers, whole = beside_whole(plain, work, lambda: run_together([(a, work)], 3), 1.5)
        suite.record.figure("lend.idle", rate(answers[0]) / whole, "ratio", 1.0, ">= 0.97", {"whole": whole})
        reclaim(suite, a, b, work)
        effect(suite, "update.effect", work, whole, [(b, "0.2"), (a, "0.8")])


def reclaim(suite, a, b, work):
    """One step of `b` after a pause, while `a` has the GPU; beside the same step on an idle one."""
    count, pause = (60, 30) if suite.simulated else (int(suite.seconds(300)), 35)
    idle = b.ask("pulses", work=work, count=min(count, 60), pause_ms=pause)["milliseconds"]
    begin = now_ns() + 50_000_000
    end = begin + count * (pause + PULSE_MS) * 1_000_000
    a.tell("run", work=work, begin_ns=begin, end_ns=end, depth=4)
    # None begins when nobody is in its way any more.
    last = end - 100_000_000
    busy = b.ask("pulses", work=work, count=count, pause_ms=pause, end_ns=last)["milliseconds"]
    a.hear(120)
    record = suite.record
    record.figure("reclaim.p50", percentile(busy, 0.5) - median(idle), "ms", median(idle), detail={"pulses": len(busy)})
    record.figure("reclaim.p99", percentile(busy, 0.99) - median(idle), "ms", percentile(idle, 0.99), "<= 20",
                  {"slowest": sorted(busy)[-12:]})


def effect(suite, name, work, whole, wanted):
    """From `gpool update` to the start of the first second within two points of the new shares. One alone does `whole`
    steps a second. `wanted` has each tenant and its new fraction, in an order in which they fit; together they are the
    whole."""
    begin = now_ns() + 50_000_000
    tenants = [tenant for tenant, _ in wanted]
    for tenant in tenants:
        tenant.tell("run", work=work, begin_ns=begin, end_ns=begin + 7_000_000_000, depth=4)
    sleep_until(begin + 3_000_000_000)
    for tenant, fraction in wanted:
        gpool("update", tenant.lease, "--fraction", fraction)
    changed = (now_ns() - begin) // 100_000_000
    counts = [tenant.hear(30)["counts"] for tenant in tenants]
    first = float(wanted[0][1])
    for start in range(changed, len(counts[0]) - 10):
        parts = [sum(its[start:start + 10]) / whole for its in counts]
        if sum(parts) and abs(parts[0] / sum(parts) - first) <= 0.02:
            suite.record.figure(name, (start - changed) * 100, "ms", aim="<= 1000", detail={"received": parts})
            return
    suite.record.figure(name, float("inf"), "ms", aim="<= 1000")
