"""Shares and limits: received beside entitled, and the work that all deliver together."""

from .. import hami
from ..host import gpool
from ..record import median
from ..tenant import TenantError, Tenants, beside_whole, prepare, rate, run_together, solo_rates, start_plain

SECONDS = 135
# Tenths of a second at the beginning of a run that do not count.
SKIP = 5
# Steps that are longer do not fit a window of 1 s: a share of it is a few of them.
LONGEST_IN_A_WINDOW_S = 0.02
# What the gate lets through at a time, at most: longer steps end one by one, shorter ones in bursts.
BURST_S = 0.002
# Of longer steps a ceiling's turn has so many at least, whatever it lets through.
LEAST_STEPS = 20


def run(suite):
    work = suite.choose("torch-matmul:4096", "fused:2048:4000", "spin:500000")
    # Enough at a time that one of them keeps the device busy: a share of rates is one of time only then.
    infer = suite.choose("torch-infer-graph:64", "fused:264:1000", "spin:200000")
    with Tenants() as tenants:
        # The whole is what one does without gpool: what that costs one alone is in all of it.
        plain = start_plain(suite, tenants, [work, infer])
        shared(suite, tenants, plain, work, infer)
        native(suite, tenants, plain, work)
        if suite.hami:
            try:
                beside_hami(suite, tenants, plain, work)
            except TenantError as error:  # Ours still count.
                suite.record.note(f"HAMi-core: {error}")


def shared(suite, tenants, plain, work, infer):
    record, short = suite.record, suite.simulated
    before = solo_rates([(plain, work)], 1)[0]
    memory = ["3GiB"] * 3 if short else ["10GiB", "4GiB", "2GiB"]
    a, b, c = (tenants.start(name, ["--fraction", part, "--memory", bytes_])
               for name, part, bytes_ in zip("abc", ("0.3", "0.6", "0.1"), memory))
    prepare([(tenant, work) for tenant in (a, b, c)])
    # If those who stand idle cost nothing, the plain one may stand idle beside them as well.
    idle_beside = solo_rates([(plain, work)], 1)[0]
    record.figure("share.idle_beside", idle_beside / before, "ratio", 1.0)
    answers, whole = beside_whole(suite, plain, work, lambda: run_together([(a, work)], 1))
    alone, detail = whole.ratio(answers[0]["rate"])
    record.figure("share.alone", alone, "ratio", 1.0, None, detail)
    trio = [(a, work, 0.3), (b, work, 0.6), (c, work, 0.1)]
    together(suite, "30_60_10", plain, trio, 5 if short else suite.seconds(10))
    gpool("pause", c.lease)
    update(c, "0.01")
    # The least share of the third, which stands, is entitled to nothing while it does.
    for name, step, shares in [("30_70", work, (0.297, 0.693)), ("10_90", work, (0.099, 0.891)),
                               ("25_75_inference", infer, (0.248, 0.742))]:
        update_two(a, b, shares)
        prepare([(a, step), (b, step)])
        pairs = [(tenant, step, share / sum(shares)) for tenant, share in zip((a, b), shares)]
        received = together(suite, name, plain, pairs, 4 if short else suite.seconds(5))
        if name == "10_90":
            ratio = received[1] / (received[0] or float("nan"))
            record.figure("share.10_90.ratio", ratio, "ratio", 9.0, "8.55 to 9.45")
    b.end()
    limits(suite, plain, a)
    for tenant in (a, c):
        tenant.end()


def update(tenant, fraction, limit=None):
    gpool("update", tenant.lease, "--fraction", fraction, *(["--limit", limit] if limit else ["--no-limit"]))


def update_two(a, b, shares):
    """New shares for two, in an order in which they always fit."""
    for tenant in (a, b):
        update(tenant, "0.01")
    for tenant, share in zip((a, b), shares):
        update(tenant, f"{share:.3f}")


def together(suite, name, plain, tenants, seconds, has_windows=True, is_ours=True):
    """Runs all, and lays what each does, and windows of 1 s where enough ends in one, beside what it is entitled to of what
    `plain` does alone. Answers what each received of that. Aims are for ours."""
    record, pairs = suite.record, [(tenant, work) for tenant, work, _ in tenants]
    answers, whole = beside_whole(suite, plain, pairs[0][1], lambda: run_together(pairs, seconds))
    rates, entitled = [rate(answer, SKIP) for answer in answers], [share for _, _, share in tenants]
    received, aim = [its / whole.rate for its in rates], lambda text: text if is_ours else None
    total, detail = whole.ratio(sum(rates))
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
    for start in range(SKIP, length - 9, 10):
        parts = [sum(answer["counts"][start:start + 10]) for answer in answers]
        all_ = sum(parts)
        if all_:
            errors += [abs(part / all_ - share) * 100 for part, share in zip(parts, entitled)]
    return sum(errors) / len(errors) if errors else float("nan")


def limits(suite, plain, tenant):
    """One tenant alone with ceilings: a graph, a large kernel with a wait after each, and a grid of sizes."""
    graph = graph_work(suite)
    one_limit(suite, "limit.graph_050", tenant, graph, 0.5, suite.seconds(4), "0.48 to 0.52")
    if suite.hami:
        prepare([(plain, graph)])
        update(tenant, "0.1", "0.5")
        half_of_plain(suite, "limit.graph_050.of_plain", plain, tenant, graph)
        update(tenant, "0.1")
    heavy = suite.choose("torch-matmul:8192", "fused:4096:20000", "spin:40000000")
    one_limit(suite, "limit.heavy_sync_030", tenant, heavy, 0.3, suite.seconds(5), "0.28 to 0.32", 1)
    grid(suite, tenant)


def one_limit(suite, name, tenant, work, limit, seconds, aim, depth=4):
    frees, [(_, got)] = ceilings(tenant, work, [limit], seconds, depth)
    detail = {"free": frees, "interval": [got / max(frees), got / min(frees)]}
    suite.record.figure(name, got / max(frees), "ratio", aim=aim, detail=detail)


def half_of_plain(suite, name, plain, tenant, work):
    """What a tenant that may have half does of what a plain process does alone: the same for whoever limits it."""
    answers, whole = beside_whole(suite, plain, work, lambda: run_together([(tenant, work)], suite.seconds(4)))
    value, detail = whole.ratio(rate(answers[0], SKIP))
    suite.record.figure(name, value, "ratio", None, None, detail)


def graph_work(suite):
    return suite.choose("torch-decode-graph", "fused-graph:264:400:20", "spin-graph:100000:20")


def ceilings(tenant, work, limits, seconds, depth=4):
    """What `tenant` does in a second without a ceiling, before and after; and for each of `limits` how many steps ended in
    each tenth of a second, and steps a second. The greater of the two is the whole: what is launched one by one is slowed
    down by whatever else the processors do."""
    exact = lambda: run_together([(tenant, work)], 1, depth)[0]["rate"]
    update(tenant, "0.1")
    prepare([(tenant, work)])
    free, answers = exact(), []
    for limit in limits:
        update(tenant, "0.1", str(limit))
        length = max(seconds, SKIP / 10 + LEAST_STEPS / (limit * free))
        answers.append(run_together([(tenant, work)], length, depth, skip_ns=SKIP * 100_000_000)[0])
    update(tenant, "0.1")
    frees = (free, exact())
    # Between ends of steps where those come one by one: of few steps whole tenths of a second hold one more or less.
    is_long = 1 / max(frees) >= BURST_S
    return frees, [(answer["counts"], answer["rate"] if is_long else rate(answer, SKIP)) for answer in answers]


def grid(suite, tenant):
    """Sizes of a step, each with several ceilings."""
    record, lows, highs, windows, turns = suite.record, [], [], [], 0
    asked = [0.25, 0.75] if suite.simulated or suite.options.brief else [0.1, 0.25, 0.5, 0.75]
    for size in [1024, 2048, 4096, 8192] if suite.has_torch else [200, 2000]:
        work = suite.choose(f"torch-matmul:{size}", f"fused:2048:{size}", f"spin:{size * 1000}")
        frees, answers = ceilings(tenant, work, asked, max(suite.seconds(2), 1.6))
        for limit, (tenths, got) in zip(asked, answers):
            # By the greater of what it does without a ceiling, and by the lesser.
            lows.append((limit, got / max(frees)))
            highs.append((limit, got / min(frees)))
            if 1 / max(frees) <= LONGEST_IN_A_WINDOW_S:
                windows += window_errors(tenths, max(frees), limit)
                turns += 1
            record.data.setdefault("limits", []).append(
                {"work": work, "limit": limit, "received": got / max(frees), "free": frees})
    mean = lambda pairs: sum(abs(got - limit) for limit, got in pairs) * 100 / len(pairs)
    least = lambda pairs: min(min(got / limit, 1.0) for limit, got in pairs)
    within = lambda figure: {"interval": sorted((figure(lows), figure(highs)))}
    record.figure("limit.mae", mean(lows), "points", aim="<= 2", detail=within(mean))
    record.figure("limit.median_error", median(abs(got - limit) * 100 for limit, got in lows), "points")
    if windows:
        # Windows of one turn share most of what is in them.
        detail = {"windows": len(windows), "turns": turns}
        record.figure("limit.mae_1s", sum(windows) / len(windows), "points", aim="<= 2", detail=detail)
    record.figure("limit.least_delivered", least(lows), "ratio", aim=">= 0.95", detail=within(least))


def window_errors(tenths, free, limit):
    """How far each window of 1 s is off `limit`, in points of `free`; one begins at each tenth of a second."""
    return [abs(sum(tenths[start:start + 10]) / free - limit) * 100 for start in range(SKIP, len(tenths) - 9)]


def native(suite, tenants, plain, work):
    """The control: the same three without gpool, as the driver shares between processes by itself."""
    trio = [plain, tenants.start("second"), tenants.start("third")]
    prepare([(tenant, work) for tenant in trio])
    measure = lambda: run_together([(tenant, work) for tenant in trio], suite.seconds(4))
    answers, whole = beside_whole(suite, plain, work, measure)
    rates = [rate(answer, SKIP) for answer in answers]
    error = max(abs(its / sum(rates) - share) * 100 for its, share in zip(rates, (0.3, 0.6, 0.1)))
    suite.record.figure("share.native.error", error, "points", detail=whole.detail(rates=rates))
    value, detail = whole.ratio(sum(rates))
    suite.record.figure("share.native.throughput", value, "ratio", None, None, detail)
    for tenant in trio[1:]:
        tenant.end()


def beside_hami(suite, tenants, plain, work):
    """The same three shares under HAMi-core, each as the ceiling that it knows, and the graph with half of all: by what
    measures ours."""
    seconds, gib = (4, 2) if suite.simulated else (suite.seconds(10), 8)
    if not hami.obeys(suite, tenants, work, solo_rates([(plain, work)], 1)[0]):
        return
    trio = hami.start(suite, tenants, {"a": 30, "b": 60, "c": 10}, gib, work)
    together(suite, "hami", plain, [(tenant, work, share) for tenant, share in zip(trio, (0.3, 0.6, 0.1))], seconds,
             is_ours=False)
    for tenant in trio:
        tenant.end()
    graph = graph_work(suite)
    half = hami.start(suite, tenants, {"half": 50}, gib, graph)[0]
    half_of_plain(suite, "limit.graph_050.hami", plain, half, graph)
