"""Requests of the latency class beside a training job, against the driver's own slicing."""

from ..record import percentile
from ..tenant import Tenants, now_ns, prepare

SECONDS = 70


def run(suite):
    infer = suite.choose("torch-infer-graph:8", "fused:264:2000", "spin:3000000")
    train = suite.choose("torch-train:32", "fused:2048:2000", "spin:2000000")
    seconds, rate = (4, 30) if suite.simulated else (suite.seconds(11), 30)
    half = ["--fraction", "0.5", "--memory", "8GiB" if not suite.simulated else "4GiB"]
    alone, beside = measured([*half, "--class", "latency"], [*half, "--class", "train"], infer, train, seconds, rate)
    plain_alone, plain = measured(None, None, infer, train, seconds, rate)
    record = suite.record
    for name, part in [("p50", 0.5), ("p95", 0.95), ("p99", 0.99)]:
        record.figure(f"latency.{name}_alone", percentile(alone, part), "ms", percentile(plain_alone, part))
        record.figure(f"latency.{name}_beside", percentile(beside, part), "ms", percentile(plain, part))
    record.figure("latency.p99_ratio", percentile(beside, 0.99) / percentile(alone, 0.99), "ratio",
                  percentile(plain, 0.99) / percentile(plain_alone, 0.99),
                  detail={"requests": len(beside), "slowest": sorted(beside)[-12:],
                          "slowest_control": sorted(plain)[-12:]})


def measured(first, second, infer, train, seconds, rate):
    """Milliseconds of each request, alone and beside the training."""
    with Tenants() as tenants:
        server, trainer = tenants.start("server", first), tenants.start("trainer", second)
        prepare([(server, infer), (trainer, train)])
        ask = lambda: server.ask("requests", work=infer, begin_ns=now_ns(), end_ns=now_ns() + int(seconds * 1e9), rate=rate)
        alone = ask()["milliseconds"]
        begin = now_ns()
        trainer.tell("run", work=train, begin_ns=begin, end_ns=begin + int((seconds + 1) * 1e9), depth=4)
        beside = ask()["milliseconds"]
        trainer.hear(seconds + 60)
        return alone, beside
