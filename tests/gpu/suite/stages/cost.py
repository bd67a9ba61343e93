"""What a share of everything costs a tenant that is alone, beside the same work without gpool."""

from .. import hami
from ..tenant import TenantError, Tenants, prepare, rate, run_together

SECONDS = 180
ROUNDS = 8


def works(suite):
    if suite.simulated:
        return {"spin_300us": "spin:300000", "graph_20x100us": "spin-graph:100000:20"}
    plain = {"fused_full": "fused:2048:2000", "fused_short": "fused:64:200", "graph_20": "fused-graph:264:400:20"}
    torch = {"matmul_1024": "torch-matmul:1024", "matmul_4096": "torch-matmul:4096", "train": "torch-train:32",
             "decode": "torch-decode", "decode_graph": "torch-decode-graph", "launch_bound": "torch-launches:1000",
             "request": "torch-infer:8"}
    return {**plain, **(torch if suite.has_torch else {})}


def depth_of(name):
    """How many steps are outstanding: of requests that are answered one by one, one."""
    return 1 if name.startswith("request") else 4


def run(suite):
    """Two processes that are alive together and compute in turn, so that both see the same clocks and temperature."""
    with Tenants() as tenants:
        native = tenants.start("native")
        shared = tenants.start("shared", ["--fraction", "1", "--memory", "60%", "--key", "mode=slice"])
        pair = {"native": native, "gpool": shared}
        if suite.hami:
            pair["hami"] = hami.start(suite, tenants, "cost", 100, 40 if not suite.simulated else 4)
        check_build(suite, shared, native)
        for name, work in works(suite).items():
            one_work(suite, name, work, pair)


def check_build(suite, shared, native):
    """The shim must be in the one process and not in the other, or the comparison is of nothing."""
    ours, plain = (tenant.ask("about")["libraries"] for tenant in (shared, native))
    suite.record.data["about"]["libraries"] = {"shared": ours, "native": plain}
    if len(ours) < 2 or not any(path.startswith("/dev/gpool/real/") for path in ours):
        raise TenantError(f"the tenant with a share has no shim: {ours}")
    if any(path.startswith("/dev/gpool") for path in plain):
        raise TenantError(f"the plain tenant has a shim: {plain}")


def one_work(suite, name, work, tenants):
    prepare([(tenant, work) for tenant in tenants.values()])
    rates, tails, stalls = ({who: [] for who in tenants} for _ in range(3))
    seconds = 0.6 if suite.simulated else suite.seconds(0.9)
    for turn in range(ROUNDS):
        order = list(tenants) if turn % 2 == 0 else list(tenants)[::-1]
        for who in order:
            answer = run_together([(tenants[who], work)], seconds, depth_of(name))[0]
            rates[who].append(rate(answer, 1))
            tails[who].append(answer["gaps_us"].get("p99", 0))
            stalls[who].append(answer["stalls"])
    # The best turn of each: what disturbs a turn from outside makes it slower, never faster.
    slower = lambda who: max(rates["native"]) / max(rates[who]) if max(rates[who]) else float("inf")
    record = suite.record
    detail = {"rates": rates, "p99_us": tails, "stalls": {who: stalls[who][-1] for who in tenants}}
    record.figure(f"cost.{name}", slower("gpool"), "ratio", 1.0, "<= 1.005", detail)
    if min(tails["native"]):
        record.figure(f"cost.{name}.p99", min(tails["gpool"]) / min(tails["native"]), "ratio", 1.0, "<= 1.01")
    if "hami" in tenants:
        record.figure(f"cost.{name}.hami", slower("hami"), "ratio", 1.0)
