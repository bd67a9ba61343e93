"""Kernels on one stream beside a long one on another, as those of a model beside a collective: what their steps take more under gpool."""

from ..host import gpool
from ..record import interval, interval_of, median
from ..tenant import Tenants, prepare, run_together

SECONDS = 44
# Of a step: how long the long kernel takes, and how many others, which take as long together.
STEPS = {"10ms": (10_000_000, 10), "20ms": (20_000_000, 20)}
# Turns of each; what the shim learns before them how the streams run; and the turns under a limit, which are no more than shown.
ROUNDS, TURN_S, LEARNING_S, LIMITED_ROUNDS = 4, 0.8, 1.5, 2
# Beside a second lease, which has a context and nothing else: who is the only one goes ahead so far that nothing could be seen, and under
# a limit bursts are as short as where others work, and slices end within the long kernel.
SHARE = ["--fraction", "0.9", "--memory", "1GiB", "--key", "mode=slice"]
IDLE = ["--fraction", "0.1", "--memory", "1GiB"]
LIMIT = 0.9
AIM = 1.02
# A device on which steps take no more of the long kernel's time than this runs both at the same time.
IS_BESIDE = 1.2


def run(suite):
    with Tenants() as tenants:
        native, shared, idle = tenants.start("native"), tenants.start("shared", SHARE), tenants.start("idle", IDLE)
        idle.ask("memory")
        pair = native, shared
        for name, (long_ns, count) in STEPS.items():
            beside, in_turn = (turns(suite, pair, way, long_ns, count, ROUNDS) for way in ("beside", "in-turn"))
            figures(suite.record, name, long_ns, beside, in_turn)
        gpool("update", shared.lease, "--limit", str(LIMIT))
        for name, (long_ns, count) in STEPS.items():
            slower = ratios(limited := turns(suite, pair, "beside", long_ns, count, LIMITED_ROUNDS))
            detail = {"limit": LIMIT, "interval": interval(slower), "rounds": limited}
            suite.record.figure(f"streams.{name}.limited", median(slower), "ratio", 1.0, None, detail)


def turns(suite, pair, way, long_ns, count, rounds):
    """The steps a second of both in each round, each first in every second one."""
    work = f"spin-{way}:{long_ns}:{long_ns // count}:{count}"
    turn_s, learning_s, rounds = (0.4, 0.5, 2) if suite.simulated else (TURN_S, LEARNING_S, rounds)
    for tenant in pair:
        prepare([(tenant, work)])
    rate = lambda tenant, seconds: run_together([(tenant, work)], seconds)[0]["rate"]
    rate(pair[1], learning_s)
    found = []
    for round_ in range(rounds):
        order = pair if round_ % 2 == 0 else pair[::-1]
        rates = [rate(tenant, turn_s) for tenant in order]
        found.append(rates if round_ % 2 == 0 else rates[::-1])
    return found


def ratios(rounds):
    """What a step takes more under gpool in each round."""
    return [plain / ours for plain, ours in rounds if ours]


def figures(record, name, long_ns, beside, in_turn):
    """What steps take more whose kernels run beside each other, over what those take more whose kernels run one after the other: that they
    are measured costs both."""
    # 1 where the device runs both at the same time, 2 where one after the other: then nothing was to be seen here.
    apart = median(1e9 / plain / long_ns for plain, _ in beside if plain)
    record.figure(f"streams.native.{name}", apart, "ratio")
    samples = ratios(beside), ratios(in_turn)
    for shown, rounds, slower in zip(("beside", "in_turn"), (beside, in_turn), samples):
        record.figure(f"streams.{name}.{shown}", median(slower), "ratio", 1.0, None, {"interval": interval(slower), "rounds": rounds})
    over = lambda ours, control: median(ours) / median(control)
    detail = {"interval": interval_of(over, *samples)}
    record.figure(f"streams.{name}", over(*samples), "ratio", 1.0, f"<= {AIM}" if apart < IS_BESIDE else None, detail)
