"""Shares and limits: received beside entitled, and the work that all deliver together."""

from .. import hami
from ..host import gpool
from ..record import median
from ..tenant import TenantError, Tenants, plain_rates, prepare, rate, run_together, solo_rates

SECONDS = 155


def run(suite):
    work = suite.choose("torch-matmul:4096", "fused:2048:4000", "spin:500000")
    # Enough at a time that one of them keeps the device busy: a share of rates is one of time only then.
    infer = suite.choose("torch-infer-graph:64", "fused:264:1000", "spin:200000")
    short = suite.simulated
    # The whole is what one does without gpool: what that costs one alone is in all of it.
    whole, whole_infer = plain_rates([work, infer], 1.5)
    with Tenants() as tenants:
        options = [["--fraction", "0.3", "--memory", "10GiB"], ["--fraction", "0.6", "--memory", "4GiB"],
                   ["--fraction", "0.1", "--memory", "2GiB"]]
        if short:
            options = [[*o[:3], "3GiB"] for o in options]
        a, b, c = (tenants.start(name, option) for name, option in zip("abc", options))
        prepare([(tenant, work) for tenant in (a, b, c)])
        alone = solo_rates([(a, work)], 1.5)[0]
        suite.record.figure("share.alone", alone / whole, "ratio", 1.0)
        together(suite, "30_60_10", [(a, work, 0.3), (b, work, 0.6), (c, work, 0.1)], whole, 5 if short else suite.seconds(10))
        gpool("pause", c.lease)
        update(c, "0.01")
        for name, shares in [("30_70", (0.3, 0.69)), ("10_90", (0.1, 0.89))]:
            # The least share of the third, which stands, is entitled to nothing while it does.
            update_two(a, b, shares)
            both = sum(shares)
            pairs = [(a, work, shares[0] / both), (b, work, shares[1] / both)]
            together(suite, name, pairs, whole, 4 if short else suite.seconds(6))
        update_two(a, b, (0.25, 0.74))
        prepare([(a, infer), (b, infer)])
        both = 0.25 + 0.74
        together(suite, "25_75_inference", [(a, infer, 0.25 / both), (b, infer, 0.74 / both)], whole_infer,
                 4 if short else suite.seconds(6))
        b.end()
        limits(suite, a)
    native(suite, work, whole)
    if suite.hami:
        try:
            beside_hami(suite, work)
        except TenantError as error:  # Ours still count.
            suite.record.note(f"HAMi-core: {error}")


def update(tenant, fraction, limit=None):
    gpool("update", tenant.lease, "--fraction", fraction, *(["--limit", limit] if limit else ["--no-limit"]))


def update_two(a, b, shares):
    """New shares for two, in an order in which they always fit."""
    for tenant in (a, b):
        update(tenant, "0.01")
    for tenant, share in zip((a, b), shares):
        update(tenant, f"{share:.3f}")


def together(suite, name, tenants, whole, seconds, has_windows=True):
    """Runs all, and lays what each does, and windows of 1 s where enough ends in one, beside what it is entitled to of what
    one does without gpool, `whole` steps a second."""
    answers = run_together([(tenant, work) for tenant, work, _ in tenants], seconds)
    record, skip = suite.record, 5
    received = [rate(answer, skip) / whole for answer in answers]
    entitled = [share for _, _, share in tenants]
    total = sum(received)
    deviations = [abs(got / total - share) * 100 for got, share in zip(received, entitled)]
    record.figure(f"share.{name}.error", max(deviations), "points", aim="<= 2", detail={"received": received})
    if has_windows:
        record.figure(f"share.{name}.mae_1s", mean_error(entitled, answers, skip), "points", aim="<= 2")
    delivered = sum(min(got / share, 1.0) * share for got, share in zip(received, entitled))
    record.figure(f"share.{name}.work_delivered", delivered, "ratio", aim=">= 0.95")
    record.figure(f"share.{name}.throughput", total, "ratio", 1.0, ">= 0.98")


def mean_error(entitled, answers, skip):
    """Mean absolute error of the shares over windows of 1 s, in points."""
    errors, length = [], min(len(answer["counts"]) for answer in answers)
    for start in range(skip, length - 9, 10):
        parts = [sum(answer["counts"][start:start + 10]) for answer in answers]
        all_ = sum(parts)
        if all_:
            errors += [abs(part / all_ - share) * 100 for part, share in zip(parts, entitled)]
    return sum(errors) / len(errors) if errors else float("nan")


def limits(suite, tenant):
    """One tenant alone with ceilings: a graph, a large kernel with a wait after each, and a grid of sizes."""
    record = suite.record
    graph = suite.choose("torch-decode-graph", "fused-graph:264:400:20", "spin-graph:100000:20")
    measure = lambda work, seconds, depth=4: rate(run_together([(tenant, work)], seconds, depth)[0], 5)
    exact = lambda work, seconds, depth=4: run_together([(tenant, work)], seconds, depth)[0]["rate"]
    update(tenant, "0.1")
    prepare([(tenant, graph)])
    free = exact(graph, 2)
    update(tenant, "0.1", "0.5")
    record.figure("limit.graph_050", measure(graph, suite.seconds(4)) / free, "ratio", aim="0.48 to 0.52")
    heavy = suite.choose("torch-matmul:8192", "fused:4096:20000", "spin:40000000")
    update(tenant, "0.1")
    prepare([(tenant, heavy)])
    free = exact(heavy, 3, 1)
    update(tenant, "0.1", "0.3")
    record.figure("limit.heavy_sync_030", measure(heavy, suite.seconds(5), 1) / free, "ratio", aim="0.28 to 0.32")
    sizes = [1024, 2048, 4096, 8192] if suite.has_torch else [200, 2000]
    errors = []
    for size in sizes:
        work = suite.choose(f"torch-matmul:{size}", f"fused:2048:{size}", f"spin:{size * 1000}")
        update(tenant, "0.1")
        prepare([(tenant, work)])
        # The best of two: what is launched one by one is slowed down by whatever else the processors do.
        free = max(exact(work, 1), exact(work, 1))
        for limit in ([0.25, 0.75] if suite.simulated or suite.options.brief else [0.1, 0.25, 0.5, 0.75]):
            update(tenant, "0.1", str(limit))
            got = measure(work, max(suite.seconds(2.5), 1)) / free
            errors.append(abs(got - limit) * 100)
            record.data.setdefault("limits", []).append({"work": work, "limit": limit, "received": got})
    record.figure("limit.mae", sum(errors) / len(errors), "points", aim="<= 2")
    record.figure("limit.median_error", median(errors), "points")


def native(suite, work, whole):
    """The control: the same three without gpool, as the driver shares between processes by itself."""
    with Tenants() as tenants:
        plain = [tenants.start(name) for name in "abc"]
        prepare([(tenant, work) for tenant in plain])
        answers = run_together([(tenant, work) for tenant in plain], suite.seconds(4))
        received = [rate(answer, 5) / whole for answer in answers]
        all_ = sum(received)
        error = max(abs(got / all_ - share) * 100 for got, share in zip(received, (0.3, 0.6, 0.1)))
        suite.record.figure("share.native.error", error, "points", detail={"received": received})
        suite.record.figure("share.native.throughput", all_, "ratio")


def beside_hami(suite, work):
    """The same three shares under HAMi-core, each as the ceiling that it knows."""
    seconds, gib = (4, 2) if suite.simulated else (10, 8)
    with Tenants() as tenants:
        plain = tenants.start("plain")
        prepare([(plain, work)])
        free = solo_rates([(plain, work)], 2)[0]
        plain.end()
        if not hami.obeys(suite, tenants, work, free):
            return
        pairs = [(hami.start(suite, tenants, name, percent, gib), work) for name, percent in zip("abc", (30, 60, 10))]
        prepare(pairs)
        received = [rate(answer, 5) / free for answer in run_together(pairs, seconds)]
        whole = sum(received) or float("nan")
        error = max(abs(got / whole - share) * 100 for got, share in zip(received, (0.3, 0.6, 0.1)))
        suite.record.figure("share.hami.error", error, "points", detail={"received": received})
        suite.record.figure("share.hami.throughput", whole, "ratio")
