"""Shares and limits: received beside entitled, and the work that all deliver together."""

import collections

from .. import hami
from ..host import gpool, handoffs, lease, lost_by_handoffs
from ..record import median
from ..sections import Sections
from ..tenant import (TenantError, Tenants, at_its_clock, beside_whole, hear_all, now_ns, prepare, rate, run_together,
                      sleep_until, solo_rates, start_plain)

SECONDS = 160
# Tenths of a second at the beginning of a run that do not count.
SKIP = 5
# Steps that are longer do not fit a window of 1 s: a share of it is a few of them.
LONGEST_IN_A_WINDOW_S = 0.03
# A job that waits for its data: what it computes at a time, and for how long it pauses then.
PAUSED_WORK_S, PAUSE_S = 0.005, 0.002
# What the gate lets through at a time, at most: longer steps end one by one, shorter ones in bursts.
BURST_S = 0.002
# Tenths of a second in a window. Windows of one turn have none in common: else they would be counted as more than they are.
WINDOW = 10
# Of longer steps a ceiling's turn has so many at least, whatever it lets through.
LEAST_STEPS = 20
# A turn under each ceiling of the grid: its beginning, and two windows; and where time is short, one.
GRID_TURN_S, GRID_LEAST_S = SKIP / 10 + 2 * WINDOW / 10, SKIP / 10 + 1.1 * WINDOW / 10
# Charges are counted once a second: when they are looked at first, so that they are of after the beginning, and in how long
# a turn they are looked at at all.
CHARGED_FROM_S, CHARGED_LEAST_S = SKIP / 10 + 1.1, 3

# A turn under a ceiling: how many steps ended in each tenth of a second; steps a second; the part of the GPU's time that
# the supervisor charged meanwhile, or None; the clock before it without a ceiling, in it, and after it without one.
Turn = collections.namedtuple("Turn", "tenths rate gpu_time clocks_mhz")


def run(suite):
    work = suite.choose("torch-matmul:4096", "fused:2048:4000", "spin:500000")
    # Enough at a time that one of them keeps the device busy: a share of rates is one of time only then.
    infer = suite.choose("torch-infer-graph:64", "fused:264:1000", "spin:200000")
    sections = Sections(suite.record)
    with Tenants() as tenants:
        # The whole is what one does without gpool: what that costs one alone is in all of it.
        plain = start_plain(suite, tenants, [work, infer])
        with sections.one("shares"):
            shared(suite, sections, plain, work, infer)
        plain = tenants.living(plain)
        with sections.one("native"):
            native(suite, plain, work, infer)
        if suite.hami:
            try:
                beside_hami(suite, plain, work)
            except TenantError as error:  # Ours still count.
                suite.record.note(f"HAMi-core: {error}")
    sections.end()


def trio_gib(suite):
    """The memory of the three, whoever shares between them."""
    return (3, 3, 3) if suite.simulated else (4, 10, 2)


def shared(suite, sections, plain, work, infer):
    with Tenants() as tenants:
        before = solo_rates([(plain, work)], 1)[0]
        a, b, c = (tenants.start(name, ["--fraction", part, "--memory", f"{gib}GiB"])
                   for name, part, gib in zip("abc", ("0.3", "0.6", "0.1"), trio_gib(suite)))
        prepare([(tenant, work) for tenant in (a, b, c)])
        with sections.one("30_60_10"):
            trio(suite, plain, (a, b, c), work, before)
        with sections.one("a pause of the third"):
            gpool("pause", c.lease)
            update(c, "0.01")
        # The least share of the third, which stands, is entitled to nothing while it does.
        for name, step, shares in [("30_70", work, (0.297, 0.693)), ("10_90", work, (0.099, 0.891)),
                                   ("25_75_inference", infer, (0.248, 0.742))]:
            with sections.one(name):
                a, b = prepared_pair(tenants, (a, b), step, shares)
                pair(suite, plain, (a, b), name, step, shares)
        with sections.one("pausing"):
            a, b = prepared_pair(tenants, (a, b), infer, (0.792, 0.198))
            pausing(suite, "share.pausing", plain, (a, b), infer, 0.8, ">= 0.9")
        a.end()
        limits(suite, sections, tenants, plain, b)


def trio(suite, plain, tenants, work, before):
    """The three together, and what the first one does alone. `before` is what the plain one did when they were not there."""
    record = suite.record
    # If those who stand idle cost nothing, the plain one may stand idle beside them as well.
    idle_beside = solo_rates([(plain, work)], 1)[0]
    record.figure("share.idle_beside", idle_beside / before, "ratio", 1.0)
    answers, whole = beside_whole(suite, plain, work, lambda: run_together([(tenants[0], work)], 1))
    alone, detail = whole.ratio(answers[0]["rate"])
    record.figure("share.alone", alone, "ratio", 1.0, None, detail)
    shares = [(tenant, work, share) for tenant, share in zip(tenants, (0.3, 0.6, 0.1))]
    together(suite, "30_60_10", plain, shares, 5 if suite.simulated else suite.seconds(10))


def prepared_pair(tenants, pair, step, shares):
    """Two tenants with `step` loaded and new shares, in an order in which these always fit; who has ended is started anew."""
    for tenant in pair:
        if tenant.is_alive:
            update(tenant, "0.01")
    pair = [tenants.living(tenant) for tenant in pair]
    prepare([(tenant, step) for tenant in pair])
    for tenant, share in zip(pair, shares):
        update(tenant, f"{share:.3f}")
    return pair


def pair(suite, plain, tenants, name, step, shares):
    steps = [(tenant, step, share / sum(shares)) for tenant, share in zip(tenants, shares)]
    received = together(suite, name, plain, steps, 4 if suite.simulated else suite.seconds(5))
    if name == "10_90":
        ratio = received[1] / (received[0] or float("nan"))
        suite.record.figure("share.10_90.ratio", ratio, "ratio", 9.0, "8.55 to 9.45")


def pausing(suite, name, plain, pair, step, share, aim=None):
    """A job that pauses after every few milliseconds, beside one that never does: what it has, over its share of the GPU while it has
    work. `plain` says how long its work takes alone."""
    alone = solo_rates([(plain, step)], 1)[0]
    steps = max(1, round(PAUSED_WORK_S * alone))
    work_s = steps / alone
    # Of the time of a round its share of the GPU, and the pause.
    entitled = work_s / (work_s / share + PAUSE_S)
    had = paused_part(pair, step, steps, work_s, suite.seconds(3))
    suite.record.figure(name, had / entitled, "ratio", aim=aim, detail={"steps": steps, "had": had, "entitled": entitled})


def paused_part(pair, step, steps, work_s, seconds):
    """The part of the GPU's time that the first of two has, which pauses, while the second never does."""
    begin = now_ns() + 50_000_000
    end = begin + int(seconds * 1e9)
    pair[0].tell("paused", work=step, steps=steps, pause_ms=PAUSE_S * 1e3, begin_ns=begin, end_ns=end)
    pair[1].tell("run", work=step, begin_ns=begin, end_ns=end)
    answers = hear_all(pair, seconds + 30)
    return answers[0]["rate"] * work_s


def update(tenant, fraction, limit=None):
    gpool("update", tenant.lease, "--fraction", fraction, *(["--limit", limit] if limit else ["--no-limit"]))


def together(suite, name, plain, tenants, seconds, has_windows=True, is_ours=True):
    """Runs all, and lays what each does, and windows of 1 s where enough ends in one, beside what it is entitled to of what
    `plain` does alone. Answers what each received of that. Aims are for ours."""
    record, pairs = suite.record, [(tenant, work) for tenant, work, _ in tenants]
    is_charged = is_ours and seconds >= CHARGED_LEAST_S
    before, charged = handoffs() if is_ours else None, []
    measure = lambda: run_charged(pairs, seconds, charged) if is_charged else run_together(pairs, seconds)
    answers, whole = beside_whole(suite, plain, pairs[0][1], measure)
    rates, entitled = [rate(answer, SKIP) for answer in answers], [share for _, _, share in tenants]
    received, aim = [its / whole.rate for its in rates], lambda text: text if is_ours else None
    total, detail = whole.ratio(sum(rates))
    if before:
        detail = {**detail, **lost_by_handoffs(before, handoffs(), total, seconds)}
    if sum(charged) > 0:
        # What the supervisor takes each to have had beside what it has done.
        apart = [abs(part / sum(charged) - its / (sum(rates) or float("nan"))) * 100 for part, its in zip(charged, rates)]
        record.figure(f"share.{name}.charged_error", max(apart), "points", detail={"each": apart, "charged": charged})
    # Of what all received together, so that another whole changes nothing.
    deviations = [abs(its / (sum(rates) or float("nan")) - share) * 100 for its, share in zip(rates, entitled)]
    record.figure(f"share.{name}.error", max(deviations), "points", aim=aim("<= 2"), detail=whole.detail(received=received))
    if has_windows:
        record.figure(f"share.{name}.mae_1s", mean_error(entitled, answers), "points", aim=aim("<= 2"))
    delivered = lambda one: sum(min(its / one / share, 1.0) * share for its, share in zip(rates, entitled))
    record.figure(f"share.{name}.work_delivered", delivered(whole.rate), "ratio", aim=aim(">= 0.95"),
                  detail={"interval": whole.interval(delivered)})
    record.figure(f"share.{name}.throughput", total, "ratio", 1.0, aim(">= 0.98"), detail)
    return received


def mean_error(entitled, answers):
    """Mean absolute error of the shares over windows of 1 s, in points."""
    errors, length = [], min(len(answer["counts"]) for answer in answers)
    for start in windows(length):
        parts = [sum(answer["counts"][start:start + WINDOW]) for answer in answers]
        all_ = sum(parts)
        if all_:
            errors += [abs(part / all_ - share) * 100 for part, share in zip(parts, entitled)]
    return sum(errors) / len(errors) if errors else float("nan")


def limits(suite, sections, tenants, plain, tenant):
    """One tenant alone with ceilings: a graph, a large kernel with a wait after each, and a grid of sizes."""
    graph = graph_work(suite)
    with sections.one("limit.graph_050"):
        tenant = tenants.living(tenant)
        one_limit(suite, "limit.graph_050", tenant, graph, 0.5, suite.seconds(5), "0.48 to 0.52")
        if suite.hami:
            prepare([(plain, graph)])
            update(tenant, "0.1", "0.5")
            half_of_plain(suite, "limit.graph_050.of_plain", plain, tenant, graph)
            update(tenant, "0.1")
    heavy = suite.choose("torch-matmul:8192", "fused:4096:20000", "spin:40000000")
    with sections.one("limit.heavy_sync_030"):
        tenant = tenants.living(tenant)
        one_limit(suite, "limit.heavy_sync_030", tenant, heavy, 0.3, suite.seconds(7), "0.28 to 0.32", 1)
    grid(suite, sections, tenants, tenant)


def one_limit(suite, name, tenant, work, limit, seconds, aim, depth=4):
    """What it does under the ceiling of what it does without; and beside that, because clocks may be higher in the one than
    in the other, the part of the GPU's time that the supervisor has charged it."""
    frees, [turn] = ceilings(suite, tenant, work, [limit], seconds, depth)
    detail = {"free": frees, "interval": [turn.rate / max(frees), turn.rate / min(frees)], "clocks_mhz": turn.clocks_mhz}
    suite.record.figure(name, turn.rate / max(frees), "ratio", aim=aim, detail=detail)
    if turn.gpu_time is not None:
        suite.record.figure(f"{name}.gpu_time", turn.gpu_time, "ratio", detail={"asked": limit})


def half_of_plain(suite, name, plain, tenant, work):
    """What a tenant that may have half does of what a plain process does alone: the same for whoever limits it."""
    answers, whole = beside_whole(suite, plain, work, lambda: run_together([(tenant, work)], suite.seconds(4)))
    value, detail = whole.ratio(rate(answers[0], SKIP))
    suite.record.figure(name, value, "ratio", None, None, detail)


def graph_work(suite):
    return suite.choose("torch-decode-graph", "fused-graph:264:400:20", "spin-graph:100000:20")


def ceilings(suite, tenant, work, limits, seconds, depth=4):
    """What `tenant` does in a second without a ceiling, before and after; and for each of `limits` its Turn. The greater of
    the two is the whole: what is launched one by one is slowed down by whatever else the processors do."""
    free = lambda: at_its_clock(suite, lambda: run_together([(tenant, work)], 1, depth)[0]["rate"])
    prepare([(tenant, work)])
    update(tenant, "0.1")
    (before, first_mhz), turns = free(), []
    for limit in limits:
        update(tenant, "0.1", str(limit))
        length = max(seconds, SKIP / 10 + LEAST_STEPS / (limit * before))
        turns.append(at_its_clock(suite, lambda: charged_run(tenant, work, length, depth)))
    update(tenant, "0.1")
    after, last_mhz = free()
    # Between ends of steps where those come one by one: of few steps whole tenths of a second hold one more or less.
    is_long = 1 / max(before, after) >= BURST_S
    usual = lambda answer: answer["rate"] if is_long else rate(answer, SKIP)
    return (before, after), [
        Turn(answer["counts"], answer["rate_of_slices"] or usual(answer), gpu_time, [first_mhz, mhz, last_mhz])
        for (answer, gpu_time), mhz in turns]


def run_charged(tenants_and_works, seconds, charged):
    """As `run_together`; puts the part of the GPU's time that each was charged meanwhile into `charged`, but for the beginning."""
    begin = now_ns() + 50_000_000
    end = begin + int(seconds * 1e9)
    for tenant, work in tenants_and_works:
        tenant.tell("run", work=work, begin_ns=begin, end_ns=end)
    hear = lambda: hear_all([tenant for tenant, _ in tenants_and_works], seconds + 30)
    try:
        first, last = ([charges(tenant, moment) for tenant, _ in tenants_and_works]
                       for moment in (begin + int(CHARGED_FROM_S * 1e9), end))
        # One may be asked about before charges are counted, which is once a second, and the next one after that.
        charged += [(after["charged_gpu_ns"] - before["charged_gpu_ns"])
                    / max(1, after["charged_at_ns"] - before["charged_at_ns"])
                    for before, after in zip(first, last)]
    except Exception:  # Not if the stage is given up: then nobody is waited for.
        # Else an answer would be taken for that to the next command.
        hear()
        raise
    return hear()


def charged_run(tenant, work, seconds, depth):
    """What it says of a run, and the part of the GPU's time that it was charged meanwhile; None where the run is too short."""
    begin = now_ns() + 50_000_000
    end = begin + int(seconds * 1e9)
    tenant.tell("run", work=work, begin_ns=begin, end_ns=end, depth=depth, skip_ns=SKIP * 100_000_000)
    gpu_time = None
    try:
        if seconds >= CHARGED_LEAST_S:
            first, last = (charges(tenant, moment) for moment in (begin + int(CHARGED_FROM_S * 1e9), end))
            if last["charged_at_ns"] > first["charged_at_ns"]:
                charged_ns = last["charged_gpu_ns"] - first["charged_gpu_ns"]
                gpu_time = charged_ns / (last["charged_at_ns"] - first["charged_at_ns"])
    except Exception:  # As above.
        tenant.hear(seconds + 30)
        raise
    return tenant.hear(seconds + 30), gpu_time


def charges(tenant, moment_ns):
    """Its lease at that moment, with the charges that were counted last."""
    sleep_until(moment_ns)
    return lease(tenant.lease)


def grid(suite, sections, tenants, tenant):
    """Sizes of a step, each with several ceilings."""
    asked, found = [0.25, 0.75] if suite.simulated or suite.options.brief else [0.1, 0.25, 0.5, 0.75], []
    for size in [1024, 2048, 4096, 8192] if suite.has_torch else [200, 2000]:
        work = suite.choose(f"torch-matmul:{size}", f"fused:2048:{size}", f"spin:{size * 1000}")
        with sections.one(f"limits of {work}"):
            tenant = tenants.living(tenant)
            frees, turns = ceilings(suite, tenant, work, asked, max(suite.seconds(GRID_TURN_S), GRID_LEAST_S))
            found += [(work, limit, frees, turn) for limit, turn in zip(asked, turns)]
            # After each size: a run that is stopped leaves what it has.
            grid_figures(suite.record, found)


def cell(work, limit, frees, turn):
    """Of one ceiling of the grid, what stands in the results: of its windows how many there are, and by how many points they are
    off; none where its steps do not fit one."""
    errors = window_errors(turn.tenths, max(frees), limit) if 1 / max(frees) <= LONGEST_IN_A_WINDOW_S else []
    return {"work": work, "limit": limit, "received": turn.rate / max(frees), "free": frees, "gpu_time": turn.gpu_time,
            "windows": len(errors), "mae_1s": sum(errors) / len(errors) if errors else None, "clocks_mhz": turn.clocks_mhz}


def grid_figures(record, found):
    """Of all that was `found`: works, their ceilings, what they do without one, and the Turns."""
    # By the greater of what it does without a ceiling, and by the lesser.
    lows = [(limit, turn.rate / max(frees)) for _, limit, frees, turn in found]
    highs = [(limit, turn.rate / min(frees)) for _, limit, frees, turn in found]
    mean = lambda pairs: sum(abs(got - limit) for limit, got in pairs) * 100 / len(pairs)
    least = lambda pairs: min(min(got / limit, 1.0) for limit, got in pairs)
    detail = lambda figure: {"interval": sorted((figure(lows), figure(highs))), "works": sorted({work for work, *_ in found})}
    cells = record.data["limits"] = [cell(*its) for its in found]
    record.figure("limit.mae", mean(lows), "points", aim="<= 2", detail=detail(mean))
    record.figure("limit.median_error", median(abs(got - limit) * 100 for limit, got in lows), "points")
    count = sum(its["windows"] for its in cells)
    if count:
        mae = sum(its["mae_1s"] * its["windows"] for its in cells if its["windows"]) / count
        record.figure("limit.mae_1s", mae, "points", aim="<= 2", detail={"windows": count})
    record.figure("limit.least_delivered", least(lows), "ratio", aim=">= 0.95", detail=detail(least))


def window_errors(tenths, free, limit):
    """How far each window of 1 s is off `limit`, in points of `free`."""
    return [abs(sum(tenths[start:start + WINDOW]) / free - limit) * 100 for start in windows(len(tenths))]


def windows(length):
    """Where windows of 1 s begin in a run of so many tenths of a second, one after the other."""
    return range(SKIP, length - WINDOW + 1, WINDOW)


def native(suite, plain, work, infer):
    """The control: the same three without gpool, as the driver shares between processes by itself."""
    with Tenants() as tenants:
        all_ = [plain, tenants.start("second"), tenants.start("third")]
        prepare([(tenant, work) for tenant in all_])
        measure = lambda: run_together([(tenant, work) for tenant in all_], suite.seconds(4))
        answers, whole = beside_whole(suite, plain, work, measure)
        prepare([(all_[1], infer)])
        pausing(suite, "share.native.pausing", plain, all_[:2], infer, 0.8)
    rates = [rate(answer, SKIP) for answer in answers]
    error = max(abs(its / sum(rates) - share) * 100 for its, share in zip(rates, (0.3, 0.6, 0.1)))
    suite.record.figure("share.native.error", error, "points", detail=whole.detail(rates=rates))
    value, detail = whole.ratio(sum(rates))
    suite.record.figure("share.native.throughput", value, "ratio", None, None, detail)


def beside_hami(suite, plain, work):
    """The same three shares under HAMi-core, each as the ceiling that it knows and with the memory that ours have, and the
    graph with half of all: by what measures ours."""
    seconds, (a_gib, b_gib, c_gib) = (4 if suite.simulated else suite.seconds(10)), trio_gib(suite)
    with Tenants() as tenants:
        if not hami.obeys(suite, tenants, plain, work):
            suite.record.note("share.hami.* and limit.graph_050.hami are left out: its limit of compute is not obeyed here")
            return
        all_ = hami.start(suite, tenants, {"a": (30, a_gib), "b": (60, b_gib), "c": (10, c_gib)}, work)
        shares = [(tenant, work, share) for tenant, share in zip(all_, (0.3, 0.6, 0.1))]
        together(suite, "hami", plain, shares, seconds, is_ours=False)
        for tenant in all_:
            tenant.end()
        graph = graph_work(suite)
        # Ours is the second one.
        half = hami.start(suite, tenants, {"half": (50, b_gib)}, graph)[0]
        half_of_plain(suite, "limit.graph_050.hami", plain, half, graph)
