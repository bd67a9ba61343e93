"""Shares and limits: received beside entitled, and the work that all deliver together."""

from .. import hami
from ..host import gpool
from ..record import median
from ..tenant import TenantError, Tenants, beside_whole, prepare, rate, run_together, solo_rates, start_plain

SECONDS = 118
# Tenths of a second at the beginning of a run that do not count.
SKIP = 5
# Steps that are longer do not fit a window of 1 s: a share of it is a few of them.
LONGEST_IN_A_WINDOW_S = 0.02


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
    answers, whole = beside_whole(plain, work, lambda: run_together([(a, work)], 1))
    record.figure("share.alone", answers[0]["rate"] / whole, "ratio", 1.0)
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
    limits(suite, a)
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


def together(suite, name, plain, tenants, seconds, has_windows=True):
    """Runs all, and lays what each does, and windows of 1 s where enough ends in one, beside what it is entitled to of what
    `plain` does alone. Answers what each received of that."""
    record, pairs = suite.record, [(tenant, work) for tenant, work, _ in tenants]
    answers, whole = beside_whole(plain, pairs[0][1], lambda: run_together(pairs, seconds))
    received = [rate(answer, SKIP) / whole for answer in answers]
    entitled = [share for _, _, share in tenants]
    total = sum(received)
    deviations = [abs(got / total - share) * 100 for got, share in zip(received, entitled)]
    detail = {"received": received, "whole": whole}
    record.figure(f"share.{name}.error", max(deviations), "points", aim="<= 2", detail=detail)
    if has_windows:
        record.figure(f"share.{name}.mae_1s", mean_error(entitled, answers), "points", aim="<= 2")
    delivered = sum(min(got / share, 1.0) * share for got, share in zip(received, entitled))
    record.figure(f"share.{name}.work_delivered", delivered, "ratio", aim=">= 0.95")
    record.figure(f"share.{name}.throughput", total, "ratio", 1.0, ">= 0.98")
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


def limits(suite, tenant):
    """One tenant alone with ceilings: a graph, a large kernel with a wait after each, and a grid of sizes."""
    record = suite.record
    _, _, received = ceilings(tenant, graph_work(suite), [0.5], suite.seconds(4))
    record.figure("limit.graph_050", received[0], "ratio", aim="0.48 to 0.52")
    heavy = suite.choose("torch-matmul:8192", "fused:4096:20000", "spin:40000000")
    _, _, received = ceilings(tenant, heavy, [0.3], suite.seconds(5), 1)
    record.figure("limit.heavy_sync_030", received[0], "ratio", aim="0.28 to 0.32")
    grid(suite, tenant)


def graph_work(suite):
    return suite.choose("torch-decode-graph", "fused-graph:264:400:20", "spin-graph:100000:20")


def ceilings(tenant, work, limits, seconds, depth=4):
    """What `tenant` does in a second without a ceiling; and for each of `limits` how many steps ended in each tenth of
    a second, and what it received of what it does without."""
    exact = lambda: run_together([(tenant, work)], 1, depth)[0]["rate"]
    update(tenant, "0.1")
    prepare([(tenant, work)])
    free, answers = exact(), []
    for limit in limits:
        update(tenant, "0.1", str(limit))
        answers.append(run_together([(tenant, work)], seconds, depth)[0])
    update(tenant, "0.1")
    # The greater of two: what is launched one by one is slowed down by whatever else the processors do.
    free = max(free, exact())
    return free, [answer["counts"] for answer in answers], [rate(answer, SKIP) / free for answer in answers]


def grid(suite, tenant):
    """Sizes of a step, each with several ceilings."""
    record, errors, windows, delivered = suite.record, [], [], []
    asked = [0.25, 0.75] if suite.simulated or suite.options.brief else [0.1, 0.25, 0.5, 0.75]
    for size in [1024, 2048, 4096, 8192] if suite.has_torch else [200, 2000]:
        work = suite.choose(f"torch-matmul:{size}", f"fused:2048:{size}", f"spin:{size * 1000}")
        free, counts, received = ceilings(tenant, work, asked, max(suite.seconds(2), 1.6))
        for limit, tenths, got in zip(asked, counts, received):
            errors.append(abs(got - limit) * 100)
            # A step that was under way when the turn ended is no part of what was counted.
            steps = got * free * (len(tenths) - SKIP) / 10
            delivered.append(min((steps + 1) / steps * got / limit, 1.0) if steps else 0.0)
            if 1 / free <= LONGEST_IN_A_WINDOW_S:
                windows += window_errors(tenths, free, limit)
            record.data.setdefault("limits", []).append({"work": work, "limit": limit, "received": got})
    record.figure("limit.mae", sum(errors) / len(errors), "points", aim="<= 2")
    record.figure("limit.median_error", median(errors), "points")
    if windows:
        mean, detail = sum(windows) / len(windows), {"windows": len(windows)}
        record.figure("limit.mae_1s", mean, "points", aim="<= 2", detail=detail)
    record.figure("limit.delivered", min(delivered), "ratio", aim=">= 0.95")


def window_errors(tenths, free, limit):
    """How far each window of 1 s is off `limit`, in points of `free`; one begins at each tenth of a second."""
    return [abs(sum(tenths[start:start + 10]) / free - limit) * 100 for start in range(SKIP, len(tenths) - 9)]


def native(suite, tenants, plain, work):
    """The control: the same three without gpool, as the driver shares between processes by itself."""
    trio = [plain, tenants.start("second"), tenants.start("third")]
    prepare([(tenant, work) for tenant in trio])
    measure = lambda: run_together([(tenant, work) for tenant in trio], suite.seconds(4))
    answers, whole = beside_whole(plain, work, measure)
    received = [rate(answer, SKIP) / whole for answer in answers]
    all_ = sum(received)
    error = max(abs(got / all_ - share) * 100 for got, share in zip(received, (0.3, 0.6, 0.1)))
    suite.record.figure("share.native.error", error, "points", detail={"received": received})
    suite.record.figure("share.native.throughput", all_, "ratio")
    for tenant in trio[1:]:
        tenant.end()


def beside_hami(suite, tenants, plain, work):
    """The same three shares under HAMi-core, each as the ceiling that it knows, and the graph with half of all."""
    seconds, gib = (4, 2) if suite.simulated else (10, 8)
    if not hami.obeys(suite, tenants, work, solo_rates([(plain, work)], 1)[0]):
        return
    trio = hami.start(suite, tenants, {"a": 30, "b": 60, "c": 10}, gib, work)
    answers, whole = beside_whole(plain, work, lambda: run_together([(tenant, work) for tenant in trio], seconds))
    received = [rate(answer, SKIP) / whole for answer in answers]
    all_ = sum(received) or float("nan")
    error = max(abs(got / all_ - share) * 100 for got, share in zip(received, (0.3, 0.6, 0.1)))
    suite.record.figure("share.hami.error", error, "points", detail={"received": received})
    suite.record.figure("share.hami.throughput", all_, "ratio")
    for tenant in trio:
        tenant.end()
    graph = graph_work(suite)
    half = hami.start(suite, tenants, {"half": 50}, gib, graph)[0]
    prepare([(plain, graph)])
    answers, whole = beside_whole(plain, graph, lambda: run_together([(half, graph)], suite.seconds(4)))
    suite.record.figure("limit.graph_050.hami", rate(answers[0], SKIP) / whole, "ratio")
