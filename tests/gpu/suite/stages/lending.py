"""Idle time lent and taken back, and how soon a new share acts."""

from ..host import gpool
from ..record import interval_of, median, percentile
from ..tenant import Tenants, beside_whole, now_ns, prepare, rate, run_together, sleep_until, start_plain

SECONDS = 77
# Pulses: as many as a 99th percentile needs; and where the driver alone shares, as many as a 95th does.
PULSES, NATIVE_PULSES = 600, 300
# The pause before each, in milliseconds, and before one on an idle device.
PAUSE_MS, IDLE_PAUSE_MS = 35, 5
# What a pulse takes beside its pause, at most, as a rule; that of a tenth of them, by which the others are expected; and how much
# longer these may take than those. Until the last one has come the GPU is kept busy, whether it is waited for or not.
PULSE_MS, FIRST, SPARE_MS = 15, 0.1, 2
# Before the end of those in its way no pulse begins.
LAST_NS = 100_000_000
# Tenths of a second that are looked at together, and how close to its new share a tenant is in them.
WINDOW, CLOSE = 10, 0.02


def run(suite):
    work = suite.choose("torch-matmul:2048", "fused:2048:1000", "spin:500000")
    with Tenants() as tenants:
        # It stays, idle, beside all that follows: it costs the device nothing.
        plain = start_plain(suite, tenants, [work])
        other = tenants.start("other")
        a, b = (tenants.start(name, ["--fraction", "0.5", "--memory", "4GiB"]) for name in "ab")
        prepare([(a, work), (b, work), (other, work)])
        # The other has a context and nothing to do: what it leaves must be used.
        answers, whole = beside_whole(suite, plain, work, lambda: run_together([(a, work)], 3), 1.5)
        value, detail = whole.ratio(rate(answers[0]))
        suite.record.figure("lend.idle", value, "ratio", 1.0, ">= 0.97", detail)
        reclaim(suite, a, b, work)
        reclaim_native(suite, plain, other, work)
        effect(suite, "update.effect_within", work, [(b, "0.2"), (a, "0.8")])


def reclaim(suite, a, b, work):
    """One step of `b` after a pause, while `a` has the GPU; beside the same step on an idle one."""
    parts = [("p50", 0.5, None), ("p95", 0.95, None), ("p99", 0.99, "<= 20")]
    waited(suite, "reclaim", (a, b), work, 60 if suite.simulated else int(suite.seconds(PULSES)), parts)


def reclaim_native(suite, plain, other, work):
    """The same of two plain processes, between which the driver shares by itself."""
    parts = [("p50", 0.5, None), ("p95", 0.95, None)]
    waited(suite, "reclaim.native", (plain, other), work, 30 if suite.simulated else int(suite.seconds(NATIVE_PULSES)), parts)


def waited(suite, name, pair, work, count, parts):
    """What pulses of the second wait for the first one, which has the GPU, by these percentiles: beside those of as many on an idle
    one, because of few the furthest one would be the slowest."""
    a, b = pair
    idle = b.ask("pulses", work=work, count=count, pause_ms=IDLE_PAUSE_MS)["milliseconds"]
    first = int(count * FIRST)
    busy = pulses(a, b, work, first, PAUSE_MS, PULSE_MS)
    expected_ms = min(PULSE_MS, sum(busy) / len(busy) + SPARE_MS) if busy else PULSE_MS
    busy += pulses(a, b, work, count - first, PAUSE_MS, expected_ms)
    for shown, part, aim in parts:
        more = lambda busy, idle: percentile(busy, part) - median(idle)
        detail = {"pulses": len(busy), "idle_pulses": len(idle), "interval": interval_of(more, busy, idle),
                  "slowest": sorted(busy)[-12:]}
        suite.record.figure(f"{name}.{shown}", more(busy, idle), "ms", percentile(idle, part), aim, detail)


def pulses(a, b, work, count, pause_ms, expected_ms):
    """The milliseconds of each pulse of `b`, while `a` has the GPU for as long as they are expected to take."""
    begin = now_ns() + 50_000_000
    end = begin + int(count * (pause_ms + expected_ms) * 1e6)
    a.tell("run", work=work, begin_ns=begin, end_ns=end, depth=4)
    # None begins before somebody is in its way, or when nobody is any more.
    sleep_until(begin)
    answer = b.ask("pulses", work=work, count=count, pause_ms=pause_ms, end_ns=end - LAST_NS)
    a.hear(120)
    return answer["milliseconds"]


def effect(suite, name, work, wanted):
    """How long after `gpool update` is asked for the new shares hold at the latest: where a second begins that is within
    two points of them. A tenth of a second is counted as a whole, and two points are some of the old shares' time, which
    is in the figure. `wanted` has each tenant and its new fraction, in an order in which they fit; together they are the
    whole."""
    begin = now_ns() + 50_000_000
    tenants = [tenant for tenant, _ in wanted]
    for tenant in tenants:
        tenant.tell("run", work=work, begin_ns=begin, end_ns=begin + 7_000_000_000, depth=4)
    sleep_until(begin + 3_000_000_000)
    asked_ms = (now_ns() - begin) / 1e6
    for tenant, fraction in wanted:
        gpool("update", tenant.lease, "--fraction", fraction)
    done_ms = (now_ns() - begin) / 1e6
    counts = [tenant.hear(30)["counts"] for tenant in tenants]
    value, detail = held_from(counts, float(wanted[0][1]), asked_ms)
    suite.record.figure(name, value, "ms", aim="<= 1000", detail={**detail, "commands_ms": done_ms - asked_ms})


def held_from(counts, share, asked_ms):
    """Milliseconds from `asked_ms` until the first of two tenants, whose steps are counted in tenths of a second, has its
    new `share` at the latest; and the detail of that."""
    def part(start):
        sums = [sum(its[start:start + WINDOW]) for its in counts]
        return sums[0] / sum(sums) if sum(sums) else float("nan")

    asked = int(asked_ms // 100)
    before = part(asked - WINDOW)
    # So much of the window may still be of the old shares.
    forgiven_ms = CLOSE / max(abs(share - before), CLOSE) * WINDOW * 100
    for start in range(asked, len(counts[0]) - WINDOW + 1):
        if abs(part(start) - share) <= CLOSE:
            detail = {"before": before, "received": part(start), "forgiven_ms": forgiven_ms, "resolution_ms": 100}
            return max(0.0, start * 100 - asked_ms) + forgiven_ms, detail
    return float("inf"), {"before": before}
