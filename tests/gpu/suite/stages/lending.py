"""Idle time lent and taken back, and how soon a new share acts."""

from ..host import gpool
from ..record import median, percentile
from ..tenant import Tenants, now_ns, prepare, rate, run_together, sleep_until, solo_rates

SECONDS = 60


def run(suite):
    work = suite.choose("torch-matmul:2048", "fused:2048:1000", "spin:500000")
    record = suite.record
    with Tenants() as tenants:
        a, b = (tenants.start(name, ["--fraction", "0.5", "--memory", "4GiB"]) for name in "ab")
        prepare([(a, work), (b, work)])
        alone = solo_rates([(a, work)], 2)[0]
        # The other has a context and nothing to do: what it leaves must be used.
        record.figure("lend.idle", rate(run_together([(a, work)], 3)[0]) / alone, "ratio", 1.0, ">= 0.97")
        reclaim(suite, a, b, work)
        effect(suite, "update.effect", work, [(b, solo_rates([(b, work)], 1)[0], "0.2"), (a, alone, "0.8")])


def reclaim(suite, a, b, work):
    """One step of `b` after a pause, while `a` has the GPU; beside the same step on an idle one."""
    count, pause = (60, 30) if suite.simulated else (int(suite.seconds(300)), 40)
    idle = b.ask("pulses", work=work, count=min(count, 100), pause_ms=pause)["milliseconds"]
    begin = now_ns() + 50_000_000
    a.tell("run", work=work, begin_ns=begin, end_ns=begin + int((count * pause / 1e3 * 1.8 + 2) * 1e9), depth=4)
    busy = b.ask("pulses", work=work, count=count, pause_ms=pause)["milliseconds"]
    a.hear(120)
    record = suite.record
    record.figure("reclaim.p50", percentile(busy, 0.5) - median(idle), "ms", median(idle))
    record.figure("reclaim.p99", percentile(busy, 0.99) - median(idle), "ms", percentile(idle, 0.99), "<= 20")


def effect(suite, name, work, wanted):
    """From `gpool update` to the start of the first second within two points of the new shares. `wanted` has each tenant, what
    it does alone, and its new fraction, in an order in which they fit; together they are the whole."""
    begin = now_ns() + 50_000_000
    tenants = [tenant for tenant, _, _ in wanted]
    for tenant in tenants:
        tenant.tell("run", work=work, begin_ns=begin, end_ns=begin + 7_000_000_000, depth=4)
    sleep_until(begin + 3_000_000_000)
    for tenant, _, fraction in wanted:
        gpool("update", tenant.lease, "--fraction", fraction)
    changed = (now_ns() - begin) // 100_000_000
    counts = [tenant.hear(30)["counts"] for tenant in tenants]
    first = float(wanted[0][2])
    for start in range(changed, len(counts[0]) - 10):
        parts = [sum(c[start:start + 10]) / alone for c, (_, alone, _) in zip(counts, wanted)]
        if sum(parts) and abs(parts[0] / sum(parts) - first) <= 0.02:
            suite.record.figure(name, (start - changed) * 100, "ms", aim="<= 1000")
            return
    suite.record.figure(name, float("inf"), "ms", aim="<= 1000")
