"""What a share of everything costs a tenant that is alone, beside the same work without gpool."""

import os

from .. import hami, libraries
from ..record import interval, median, percentile
from ..tenant import TenantError, Tenants, prepare, run_together, warm_up

SECONDS = 100
# Pairs of turns for each work, and the length of a turn.
ROUNDS, TURN_S = 8, 0.4
# A 99th percentile of fewer says nothing.
TAIL_EVENTS = 300
# The beginning of a turn, which does not count.
SKIP_NS = 80_000_000


def groups(suite):
    """Works by name, in groups, each of which has a pair of tenants of its own. What PyTorch computes must not be beside
    a context that the suite has made by itself: no program of PyTorch's has two, and the shim is slower with them."""
    if suite.simulated:
        return {"driver": {"spin_300us": "spin:300000"}, "graphs": {"graph_20x100us": "spin-graph:100000:20"}}
    plain = {"fused_full": "fused:2048:2000", "fused_short": "fused:64:200", "graph_20": "fused-graph:264:400:20"}
    torch = {"matmul_1024": "torch-matmul:1024", "matmul_4096": "torch-matmul:4096", "train": "torch-train:32",
             "decode": "torch-decode", "decode_graph": "torch-decode-graph", "launch_bound": "torch-launches:1000",
             "request": "torch-infer:8"}
    return {"driver": plain, **({"torch": torch} if suite.has_torch else {})}


def depth_of(name):
    """How many steps are outstanding: of requests that are answered one by one, one."""
    return 1 if name.startswith("request") else 4


def run(suite):
    failed, ratios = [], {}
    for group, works in groups(suite).items():
        try:
            failed += one_group(suite, group, works, ratios)
        except TenantError as error:
            failed.append(f"{group}: {error}")
    if ratios:
        mean = sum(ratios.values()) / len(ratios)
        suite.record.figure("cost.mean", mean, "ratio", 1.0, "<= 1.005", {"of": list(ratios)})
    if failed:
        raise TenantError("; ".join(failed))


def one_group(suite, group, works, ratios):
    """Two processes that are alive together and compute in turn, so that both see the same clocks and temperature. Puts
    what each work costs into `ratios`; answers what went wrong."""
    first, gib = next(iter(works.values())), 40 if not suite.simulated else 4
    with Tenants() as tenants:
        native = tenants.start("native")
        shared = tenants.start("shared", ["--fraction", "1", "--memory", "60%", "--key", "mode=slice"])
        pair = {"native": native, "gpool": shared}
        plain, ours = prepare([(native, first), (shared, first)])
        check_build(suite, group, ours["libraries"], plain["libraries"])
        if suite.hami:
            try:
                pair["hami"] = hami.start(suite, tenants, {f"cost-{group}": 100}, gib, first)[0]
            except TenantError as error:
                suite.record.note(f"HAMi-core: {error}")
        warm_up(suite, native, first)
        failed = []
        for name, work in works.items():
            try:
                ratios[name] = one_work(suite, name, work, pair)
            except TenantError as error:  # A work that cannot be done here costs no other one its figures.
                failed.append(f"{name}: {error}")
                if any(tenant.process.poll() is not None for tenant in pair.values()):
                    break
        return failed


def check_build(suite, group, ours, plain):
    """The shim must be in the one process and not in the other, or the comparison is of nothing."""
    suite.record.data["about"].setdefault("libraries", {})[group] = {"shared": ours, "native": plain}
    for name, found, shims in (("shared", ours, suite.shims()), ("native", plain, None)):
        if wrong := libraries.wrong(found, name == "shared", shims):
            raise TenantError(f"{name}: {wrong}")


def one_work(suite, name, work, tenants):
    """Short turns, in pairs on one processor: what disturbs one turn from outside is likely to disturb its neighbour too,
    and a processor that others keep busy slows both. How much turns of the same tenant differ all the same is told.
    Answers how much slower the work is under gpool."""
    prepare([(tenant, work) for tenant in tenants.values()])
    turns, gaps = {who: [] for who in tenants}, {who: [] for who in tenants}
    brief = suite.simulated or suite.options.brief
    cores = sorted(os.sched_getaffinity(0))
    for round_ in range(ROUNDS):
        # The first one of a pair is the second one of the next.
        order = list(tenants) if round_ % 2 == 0 else list(tenants)[::-1]
        for who in order:
            answer = run_together([(tenants[who], work)], 0.3 if brief else TURN_S, depth_of(name), skip_ns=SKIP_NS,
                                  core=cores[-1 - round_ % len(cores)])[0]
            turns[who].append({**{what: answer[what] for what in ("rate", "cpu_us", "stolen_ms", "switches")},
                               "stalls": answer["stalls"]["count"]})
            gaps[who].append(answer["gaps_us"]["some"])
    if not all(turn["rate"] for of_one in turns.values() for turn in of_one):
        raise TenantError(f"{name}: a turn in which no step ended: {turns}")
    return figures(suite.record, name, turns, gaps)


def figures(record, name, turns, gaps):
    of = lambda who, what: [turn[what] for turn in turns[who]]
    quotients = lambda over, under: [one / other for one, other in zip(over, under)]
    slower = quotients(of("native", "rate"), of("gpool", "rate"))
    detail = {"interval": interval(slower), "turns": turns}
    record.figure(f"cost.{name}", median(slower), "ratio", 1.0, "<= 1.005", detail)
    record.figure(f"cost.{name}.noise", noise(of("native", "rate")), "ratio", None, None)
    events = min(len(sum(those, [])) for those in gaps.values())
    if events >= 2 * TAIL_EVENTS:
        record.figure(f"cost.{name}.p99", tail(gaps["gpool"]) / tail(gaps["native"]), "ratio", 1.0, "<= 1.01")
    else:
        record.note(f"cost.{name}.p99 is left out: {events} events are too few, {2 * TAIL_EVENTS} are needed")
    if all(of("native", "cpu_us")):
        spent = quotients(of("gpool", "cpu_us"), of("native", "cpu_us"))
        detail = {"interval": interval(spent), **{who: median(of(who, "cpu_us")) for who in turns}}
        record.figure(f"cost.{name}.cpu", median(spent), "ratio", 1.0, None, detail)
    if "hami" in turns:
        beside = quotients(of("native", "rate"), of("hami", "rate"))
        record.figure(f"cost.{name}.hami", median(beside), "ratio", 1.0, None, {"interval": interval(beside)})
    return median(slower)


def tail(gaps):
    """The 99th percentile of the times between ends of steps, of the better half of the turns: one turn has too few."""
    half = len(gaps) // 2
    return min(percentile(sum(turns, []), 0.99) for turns in (gaps[:half], gaps[half:]))


def noise(rates):
    """What two turns of the same tenant that follow each other, but for a pair's other half, differ by: a figure that is no
    further from 1 than this says nothing by itself."""
    return 1 + median(abs(one / next_ - 1) for one, next_ in zip(rates, rates[1:]))
