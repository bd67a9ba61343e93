"""Kernels on one stream beside a long one on another, as those of a model beside a collective: what their steps take more under gpool."""

from ..record import interval, median
from ..tenant import Tenants, prepare, run_together

SECONDS = 20
# Of a step: how long the long kernel takes, and how many others, which take as long together.
STEPS = {"10ms": (10_000_000, 10), "20ms": (20_000_000, 20)}
ROUNDS, TURN_S, LEARNING_S = 4, 0.6, 1.5
# A limit that is never reached: who has none and is alone goes ahead so far that nothing could be seen.
SHARE = ["--fraction", "1", "--limit", "1", "--memory", "1GiB", "--key", "mode=slice"]


def run(suite):
    with Tenants() as tenants:
        native, shared = tenants.start("native"), tenants.start("shared", SHARE)
        for name, (side_ns, count) in STEPS.items():
            work = f"spin-beside:{side_ns}:{side_ns // count}:{count}"
            prepare([(native, work)])
            prepare([(shared, work)])
            rate = lambda tenant, seconds: run_together([(tenant, work)], seconds)[0]["rate"]
            rate(shared, LEARNING_S)
            rounds = [[rate(tenant, TURN_S) for tenant in (native, shared)] for _ in range(ROUNDS)]
            slower = [plain / ours for plain, ours in rounds if ours]
            # 1 where the device runs both at the same time, 2 where one after the other: then nothing was to be seen here.
            apart = median(1e9 / plain / side_ns for plain, _ in rounds)
            suite.record.figure(f"streams.native.{name}", apart, "ratio")
            aim = "<= 1.02" if apart < 1.2 else None
            suite.record.figure(f"streams.{name}", median(slower), "ratio", 1.0, aim,
                                {"interval": interval(slower), "rounds": rounds})
