"""What a share of everything costs a tenant that is alone, beside the same work without gpool."""

import collections

from .. import calls, hami, libraries
from ..host import HostError
from ..record import interval, interval_of, median, percentile
from ..tenant import START_PATIENCE_S, TenantError, Tenants, hear_all, prepare, run_together, warm_up

SECONDS = 144
# Turns of a plain process before gpool is brought up, and as many afterwards.
AROUND_TURNS = 6
# How a work is measured: in how many rounds, in each of which each process has a turn; how long a turn is; its beginning, which
# does not count; and how long before it all are told.
Plan = collections.namedtuple("Plan", "rounds turn_s skip_ns lead_ms")
# What keeps the device busy differs by a thousandth from turn to turn.
LONG = Plan(6, 0.4, 80_000_000, 50)
# Of steps of 30 ms so many more that a percentile of all turns is judged: 66 times between ends of steps.
STEPS = LONG._replace(turn_s=0.45)
# What the processor launches one by one has fast turns and slow ones: of many short ones those that are fast come again. Few
# decide less than what calls cost one by one, see `calls`.
SHORT = Plan(9, 0.13, 25_000_000, 20)
LAUNCH_BOUND = {"fused_short", "decode", "launch_bound", "request"}
# What all do alone first, for so long, and which does not count: the shim knows after a second how long bursts of many kernels
# are, and what is paid until then is paid once. Whether that was all is told by both halves of the rounds.
LEARNT, LEARNING_S = {"train", "spin_300us"}, 1.5
# What is measured once more beside a second lease, which does nothing: who is not the only one is measured more often.
JOINED = {"train", "fused_short", "decode", "request", "spin_300us"}
# In how many rounds: of short turns a few say nothing.
JOINED_ROUNDS = {LONG: 3, STEPS: 3, SHORT: 4}
# Of which works it is measured what the processors have to do where who waits for the device sleeps, in how many rounds.
SLEEPING, SLEEPING_ROUNDS = {"train", "decode", "request", "spin_300us"}, 2
# What percentile is judged of so many events: of fewer it is one of the last few.
TAILS = [(600, "p99", 0.99), (60, "p90", 0.9)]
# HAMi-core with its limit of compute off and on; each has every second round.
NO_LIMIT = 100
HAMI_PERCENTS = {"hami": NO_LIMIT, "hami_limited": 99}
# Another plain process: two of them differ by where their memory lies, and so may the pair.
TWIN = "twin"
# Rates of the fast turns: what is faster than three quarters of them.
FAST = 0.75


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


def plan_of(name):
    return SHORT if name in LAUNCH_BOUND else STEPS if name == "train" else LONG


def depth_of(name):
    """How many steps are outstanding: of requests that are answered one by one, one."""
    return 1 if name.startswith("request") else 4


def around(suite, bring_up):
    """Brings gpool up while a plain process is alive, which computes in turns before and afterwards: what the supervisor
    takes of those who have no share is in every other figure's control. `run` makes a figure of it."""
    with Tenants() as tenants:
        plain, work = tenants.start("plain"), suite.choose("torch-matmul:1024", "fused:264:400", "spin:300000")

        def turns():
            try:
                prepare([(plain, work)])
                warm_up(suite, plain, work)
                return [one_turn(suite, "around", work, plain)["rate"] for _ in range(AROUND_TURNS)]
            except TenantError as error:
                suite.record.note(f"cost.host is left out: {error}")
                return []

        before = turns()
        bring_up()
        suite.around = before, turns()


def host(suite):
    """What a plain process takes longer for the same work beside a supervisor without tenants than without gpool."""
    before, after = suite.around
    slower = lambda before, after: median(before) / median(after)
    if before and after and all(after):
        detail = {"interval": interval_of(slower, before, after), "before": before, "after": after}
        suite.record.figure("cost.host", slower(before, after), "ratio", 1.0, None, detail)
    else:
        suite.record.note("cost.host is left out: no plain process has computed before gpool was brought up and afterwards")


def run(suite):
    host(suite)
    failed, slower, of = [], {}, groups(suite)
    for group, works in of.items():
        try:
            failed += one_group(suite, group, works, slower)
        except TenantError as error:
            failed.append(f"{group}: {error}")
    means(suite.record, [name for works in of.values() for name in works], slower)
    try:
        calls.measure(suite)
    except (TenantError, HostError) as error:
        failed.append(f"calls: {error}")
    if failed:
        raise TenantError("; ".join(failed))


def means(record, names, slower):
    """Of all works, and of those that keep the device busy, each beside that of the twin."""
    busy = [name for name in names if name not in LAUNCH_BOUND]
    for figure, of in (("cost.mean", names), ("cost.mean_busy", busy)):
        if missing := [name for name in of if name not in slower]:
            # A mean of what happened to be measured would stand under the same name.
            record.note(f"{figure} is left out: nothing of {', '.join(missing)}")
            continue
        ours, twins = ([slower[name][who] for name in of] for who in ("gpool", TWIN))
        twin, detail = mean_of_medians(*twins), lambda samples: {"of": of, "interval": interval_of(mean_of_medians, *samples)}
        record.figure(f"{figure}.twin", twin, "ratio", 1.0, None, detail(twins))
        record.figure(figure, mean_of_medians(*ours), "ratio", twin, "<= 1.005", detail(ours))


def mean_of_medians(*samples):
    return sum(median(values) for values in samples) / len(samples)


def one_group(suite, group, works, slower):
    """Two processes that are alive together and compute in turn, so that both see the same clocks and temperature. Puts
    how much slower each work is in each round into `slower`, under gpool and for the twin; answers what went wrong."""
    first, gib = next(iter(works.values())), 40 if not suite.simulated else 4
    with Tenants() as tenants:
        native = tenants.start("native")
        shared = tenants.start("shared", ["--fraction", "1", "--memory", "60%", "--key", "mode=slice"])
        twin = tenants.start(TWIN)
        pair = {"native": native, "gpool": shared}
        plain, ours = loaded(group, (native, shared, twin))[:2]
        check_build(suite, group, ours["libraries"], plain["libraries"])
        prepare([(native, first)])
        warm_up(suite, native, first)
        others = hami_tenants(suite, tenants, group, gib, native, first) if suite.hami else {}
        failed = []
        for name, work in works.items():
            try:
                slower[name] = one_work(suite, name, work, {**pair, TWIN: twin}, others)
            except TenantError as error:  # A work that cannot be done here costs no other one its figures.
                failed.append(f"{name}: {error}")
                if any(tenant.process.poll() is not None for tenant in (*pair.values(), twin)):
                    break
        try:
            joined(suite, tenants, {name: work for name, work in works.items() if name in JOINED}, pair)
        except TenantError as error:
            failed.append(f"{group}, joined: {error}")
        return failed


def loaded(group, tenants):
    """What each says once it has its context: none has launched anything by then, so that no kernel is beside others' kernels."""
    for tenant in tenants:
        tenant.tell("memory", by_torch=group == "torch")
    return hear_all(tenants, START_PATIENCE_S)


def joined(suite, tenants, of, pair):
    """The same pair while there is another lease, whose process has a context and does nothing."""
    if not of or not all(tenant.is_alive for tenant in pair.values()):
        return
    # It needs no free share.
    idle = tenants.start("idle", ["--fraction", "0.1", "--memory", "1GiB", "--priority", "burst"])
    idle.ask("memory")
    for name, work in of.items():
        for tenant in pair.values():
            prepare([(tenant, work)])
        rates = {who: [] for who in pair}
        for round_ in range(JOINED_ROUNDS[plan_of(name)]):
            for who in list(pair) if round_ % 2 == 0 else list(pair)[::-1]:
                rates[who].append(one_turn(suite, name, work, pair[who], plan_of(name))["rate"])
        ratios = [plain / ours for plain, ours in zip(rates["native"], rates["gpool"]) if ours]
        detail = {"interval": interval(ratios), "ratios": ratios, "rates": rates}
        suite.record.figure(f"cost.{name}.joined", median(ratios), "ratio", 1.0, None, detail)


def hami_tenants(suite, tenants, group, gib, native, first):
    """Those that can be started, and the one with a limit of compute only if limits are obeyed here. Each is half as large as
    ours: both are alive at the same time."""
    started = {}
    for who, percent in HAMI_PERCENTS.items():
        try:
            if percent < NO_LIMIT and not hami.obeys(suite, tenants, native, first):
                suite.record.note(f"cost.*.{who} is left out in the group {group}: its limit of compute is not obeyed here")
                continue
            started[who] = hami.start(suite, tenants, {f"cost-{group}-{who}": (percent, gib // 2)}, first)[0]
        except TenantError as error:
            suite.record.note(f"HAMi-core, {who}: {error}")
    return started


def check_build(suite, group, ours, plain):
    """The shim must be in the one process and not in the other, or the comparison is of nothing."""
    suite.record.data["about"].setdefault("libraries", {})[group] = {"shared": ours, "native": plain}
    for name, found, shims in (("shared", ours, suite.shims()), ("native", plain, None)):
        if wrong := libraries.wrong(found, name == "shared", shims):
            raise TenantError(f"{name}: {wrong}")


def one_work(suite, name, work, plain_and_ours, others):
    """Short turns, one after the other on one processor that nobody else of the suite is on: what disturbs one turn from outside
    is likely to disturb its neighbour too. Each process is first, second and third equally often.
    Answers how much slower the work is in each round, under gpool and for the twin. Who of the `others` fails is left out from
    then on, and costs the pair nothing."""
    plain = {who: tenant for who, tenant in plain_and_ours.items() if who != "gpool"}
    # Ours by itself: of a kernel that is first measured beside others', the shim expects all that these take as well.
    prepare([(plain_and_ours["gpool"], work)])
    prepare([(tenant, work) for tenant in plain.values()])
    pair = {who: tenant for who, tenant in plain_and_ours.items() if who != TWIN}
    for who, tenant in list(others.items()):
        attempt(suite, others, who, lambda: prepare([(tenant, work)]))
    turns, gaps, plan, everybody = {}, {}, plan_of(name), list(plain_and_ours)
    if name in LEARNT:
        for who in ("gpool", *plain):
            one_turn(suite, name, work, plain_and_ours[who], plan._replace(turn_s=LEARNING_S))
    for round_ in range(plan.rounds):
        beside = [who for at, who in enumerate(HAMI_PERCENTS) if at == round_ % 2 and who in others]
        first = round_ % len(everybody)
        order = everybody[first:] + everybody[:first]
        for who in (order if round_ // len(everybody) % 2 == 0 else order[::-1]) + beside:
            measure = lambda tenant: one_turn(suite, name, work, tenant, plan)
            is_theirs = who not in plain_and_ours
            answer = attempt(suite, others, who, lambda: measure(others[who])) if is_theirs else measure(plain_and_ours[who])
            if answer is None:
                continue
            turns.setdefault(who, {})[round_] = {
                **{what: answer[what] for what in ("rate", "stolen_ms", "switches")}, "stalls": answer["stalls"]["count"],
                "p50_us": answer["gaps_us"].get("p50")}
            gaps.setdefault(who, []).append(answer["gaps_us"]["some"])
    if not all(turn["rate"] for who in plain_and_ours for turn in turns[who].values()):
        raise TenantError(f"{name}: a turn in which no step ended: {turns}")
    slower = figures(suite.record, name, turns, gaps)
    if name in SLEEPING:
        processors(suite, name, work, pair)
    return slower


def one_turn(suite, name, work, tenant, plan=LONG, **more):
    turn_s = min(plan.turn_s, 0.3) if suite.simulated or suite.options.brief else plan.turn_s
    return run_together([(tenant, work)], turn_s, depth_of(name), plan.lead_ms, skip_ns=plan.skip_ns, core=suite.core, **more)[0]


def attempt(suite, others, who, action):
    """What `action` answers; None if that tenant fails, which ends it."""
    try:
        return action()
    except TenantError as error:
        suite.record.note(f"HAMi-core, {who}, is left out from here on: {error}")
        others.pop(who).kill()
        return None


def figures(record, name, turns, gaps):
    """Answers how much slower the work is in each round, under gpool and for the twin."""
    def slower(who):
        """Beside the plain turn of the same round."""
        return [turns["native"][round_]["rate"] / turn["rate"] for round_, turn in turns[who].items() if turn["rate"]]

    ours, apart = slower("gpool"), slower(TWIN)
    # By these the one after them is judged.
    record.figure(f"cost.{name}.noise", noise(apart), "ratio", None, None)
    record.figure(f"cost.{name}.twin", median(apart), "ratio", 1.0, None, {"interval": interval(apart)})
    record.figure(f"cost.{name}", median(ours), "ratio", 1.0, "<= 1.005", {"interval": interval(ours), "turns": turns})
    if name in LEARNT:
        half = len(ours) // 2
        for part, rounds in (("early", slice(half)), ("late", slice(half, None))):
            record.figure(f"cost.{name}.{part}", median(ours[rounds]), "ratio", median(apart[rounds]))
    if name in LAUNCH_BOUND:
        rates = {who: [turn["rate"] for turn in its.values()] for who, its in turns.items()}
        fast = lambda plain, other: percentile(plain, FAST) / percentile(other, FAST)
        found = {who: fast(rates["native"], rates[who]) for who in ("gpool", TWIN)}
        detail = {"interval": interval_of(fast, rates["native"], rates["gpool"])}
        record.figure(f"cost.{name}.fast", found["gpool"], "ratio", found[TWIN], None, detail)
    tail(record, name, gaps)
    for who in HAMI_PERCENTS:
        if who in turns and (beside := slower(who)):
            record.figure(f"cost.{name}.{who}", median(beside), "ratio", 1.0, None, {"interval": interval(beside)})
    return {"gpool": ours, TWIN: apart}


def tail(record, name, gaps):
    """The slow ones among the times between ends of steps, of all turns, beside those of the plain process: the furthest
    percentile of which there are enough."""
    events = min(len(sum(gaps[who], [])) for who in ("gpool", "native"))
    shown, part = next(((shown, part) for least, shown, part in TAILS if events >= least), (None, None))
    if shown is None:
        record.note(f"cost.{name}.p90_pooled is left out: {events} events are too few, {TAILS[-1][0]} are needed")
        return
    at = lambda turns: percentile(sum(turns, []), part)
    ratio = lambda ours, plain: at(ours) / at(plain)
    # Turns are drawn again, not gaps: those of one turn are disturbed together.
    detail = {"interval": interval_of(ratio, gaps["gpool"], gaps["native"], resamples=200), "events": events}
    record.figure(f"cost.{name}.{shown}_pooled.noise", ratio(gaps["native"][::2], gaps["native"][1::2]), "ratio")
    record.figure(f"cost.{name}.{shown}_pooled", ratio(gaps["gpool"], gaps["native"]), "ratio", 1.0, "<= 1.01", detail)


def processors(suite, name, work, pair):
    """What a step takes of the processors, all threads included, where who waits sleeps: one that looks all the time takes
    whatever time there is, and what a launch takes more would be taken from the looking."""
    spent = {who: [] for who in pair}
    for round_ in range(SLEEPING_ROUNDS):
        for who in list(pair) if round_ % 2 == 0 else list(pair)[::-1]:
            spent[who].append(one_turn(suite, name, work, pair[who], is_sleeping=True)["cpu_us"])
    if all(spent["native"]):
        ratios = [ours / plain for ours, plain in zip(spent["gpool"], spent["native"])]
        suite.record.figure(f"cost.{name}.cpu_asleep", median(ratios), "ratio", 1.0, None, {"us": spent, "ratios": ratios})


def noise(ratios):
    """What two plain processes differ by in a round, usually: a round that is no further from 1 says nothing by itself."""
    return 1 + median(abs(ratio - 1) for ratio in ratios)
