"""Unequal tenants in pairs: what each does of what it does alone, over its share, where their kernels are nothing alike."""

import collections

from ..tenant import (START_PATIENCE_S, TenantError, Tenants, at_its_clock, hear_all, prepare, rate, run_together, solo_rates,
                      warm_up)
from .shares import CHARGED_LEAST_S, SKIP, run_charged, update

SECONDS = 48
TURN_S, NATIVE_S, ALONE_S = 5, 4, 1
# By name, two works: kernels of tens of milliseconds that fill the device beside short ones that the processor launches one by one;
# and these beside a step of both kinds.
PAIRS = {"matmul_decode": ("matmul", "decode"), "decode_train": ("decode", "train")}
# By name, the shares of the first and of the second.
SPLITS = {"50_50": (0.5, 0.5), "20_80": (0.2, 0.8)}
# What the driver gives each of two by itself, whoever they are.
HALF = (0.5, 0.5)

# What two did together: of each its steps a second over those of a plain process alone; and the part of the GPU's time that it was
# charged, or none of both.
Together = collections.namedtuple("Together", "of_alone charged")


def works(suite):
    """What each of the names is here."""
    return {"matmul": suite.choose("torch-matmul:8192", "fused:4096:20000", "spin:20000000"),
            "decode": suite.choose("torch-decode", "fused:64:200", "spin:200000"),
            "train": suite.choose("torch-train:32", "fused-graph:264:400:20", "spin-graph:100000:20")}


def run(suite):
    memory = "3GiB" if suite.simulated else "8GiB"
    with Tenants() as tenants:
        # They stay, idle, beside those with a share: that costs the device nothing.
        plain = [tenants.start(name) for name in ("plain", "other")]
        ours = [tenants.start(name, ["--fraction", "0.5", "--memory", memory]) for name in ("first", "second")]
        # All read what they need at once; none has launched anything by then.
        for tenant in (*plain, *ours):
            tenant.tell("memory", by_torch=suite.has_torch)
        hear_all([*plain, *ours], START_PATIENCE_S)
        of = works(suite)
        prepare([(plain[0], of["matmul"])])
        warm_up(suite, plain[0], of["matmul"])
        for name, pair in PAIRS.items():
            one_pair(suite, name, pair, [of[its] for its in pair], plain, ours)


def one_pair(suite, name, kinds, steps, plain, ours):
    """Both splits of one pair, and as control the same two without gpool."""
    for tenants in (plain, ours):
        for tenant, step in zip(tenants, steps):
            prepare([(tenant, step)])
    turn_s, native_s = (3.5, 2) if suite.simulated else (suite.seconds(TURN_S), suite.seconds(NATIVE_S))
    alone = lambda: solo_rates(zip(plain, steps), ALONE_S)
    before, first_mhz = at_its_clock(suite, alone)
    native, native_mhz = at_its_clock(suite, lambda: run_together(list(zip(plain, steps)), native_s))
    found = {}
    for split, shares in SPLITS.items():
        # All have little before one has more: so they always fit.
        for tenant, share in [*((tenant, 0.01) for tenant in ours), *zip(ours, shares)]:
            update(tenant, str(share))
        found[split] = at_its_clock(suite, lambda: shared(list(zip(ours, steps)), turn_s))
    after, last_mhz = at_its_clock(suite, alone)
    whole = [sum(its) / 2 for its in zip(before, after)]
    if not all(whole):
        raise TenantError(f"{name}: one does nothing alone: {before}, {after}")
    control = Together(parts(native, whole), None)
    for split, ((answers, charged), mhz) in found.items():
        clocks = [first_mhz, native_mhz, mhz, last_mhz]
        detail = {"works": steps, "wholes": [before, after], "clocks_mhz": clocks}
        figures(suite.record, f"unequal.{name}.{split}", kinds, SPLITS[split], Together(parts(answers, whole), charged), control, detail)


def shared(pairs, seconds):
    """What both said, and the part of the GPU's time that each was charged, or None where the turn is too short to tell."""
    charged = []
    if seconds < CHARGED_LEAST_S:
        return run_together(pairs, seconds), None
    return run_charged(pairs, seconds, charged), charged


def parts(answers, whole):
    """Of each, what it did over what it does alone."""
    return [rate(answer, SKIP) / its for answer, its in zip(answers, whole)]


def figures(record, name, kinds, shares, ours, control, detail):
    """A tenant that has what it is entitled to does its share of what it does alone; of both together that is 1."""
    over = lambda together, shares: [part / share for part, share in zip(together.of_alone, shares)]
    charged = ours.charged or [None, None]
    for kind, share, part, value, driver, its in zip(kinds, shares, ours.of_alone, over(ours, shares), over(control, HALF), charged):
        record.figure(f"{name}.{kind}", value, "ratio", driver,
                      detail={"share": share, "of_alone": part, "charged": its, **detail})
    record.figure(f"{name}.sum", sum(ours.of_alone), "ratio", sum(control.of_alone), detail=detail)
    if ours.charged:
        # Of the GPU's time; what is missing is nobody's.
        record.figure(f"{name}.charged", sum(ours.charged), "ratio", detail={"each": ours.charged})
