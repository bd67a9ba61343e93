"""Requests of the latency class beside a training job, short ones and long ones, against the driver's own slicing."""

import time

from ..host import gpool, lease
from ..record import interval_of, percentile
from ..tenant import Tenants, now_ns, prepare, run_together, warm_up

SECONDS = 115
# What a long request takes, at least 20 ms; and how many come in a second, of the short ones and of the long ones.
LONG_MS, SHORT_RATE, LONG_RATE = 25, 50, 8
# What a short request may wait for beside a training job: 2 ms, and one burst that has begun, which is 2 ms at most.
WAIT_MS = 2 + 2
# Of fewer events a 99th percentile is one of the last few, and is shown but not judged.
TAIL_EVENTS = 600
# A request is looked at by gpool so long after its end, and its figures are a second old.
TOLD_AFTER_S = 3.2
# The training goes on for so long when the first request may come.
LEAD_NS = 300_000_000


class Kind:
    """Requests of one kind, and the milliseconds of each: alone and beside the training, with gpool and without."""

    def __init__(self, name, work, steps, rate, seconds):
        self.name, self.work, self.steps, self.rate, self.seconds = name, work, steps, rate, seconds
        self.times = {(who, where): [] for who in ("gpool", "plain") for where in ("alone", "beside")}
        self.served = {key: [] for key in self.times}
        # Steps a second of the training beside them, over those that it does alone.
        self.training = {"gpool": [], "plain": []}
        # What gpool tells of those beside the training, one for each turn.
        self.told = []


def run(suite):
    kinds = []
    try:
        turns(suite, kinds)
    finally:
        # Also of a turn that breaks off, or after which the stage is given up: what there is counts. The tenants have ended
        # by now: figures take seconds.
        for kind in kinds:
            figures(suite.record, kind)


def turns(suite, kinds):
    """Adds the kinds of requests to `kinds`, and to these what came of each turn."""
    infer = suite.choose("torch-infer-graph:8", "fused:264:2000", "spin:1000000")
    part = suite.choose("torch-infer-graph:64", "fused:2048:2000", "spin:5000000")
    train = suite.choose("torch-train:32", "fused:2048:2000", "spin:2000000")
    half = ["--fraction", "0.5", "--memory", "8GiB" if not suite.simulated else "4GiB"]
    with Tenants() as tenants:
        # All four are alive all the time: those who are idle cost the others nothing, and to start them takes seconds.
        pairs = {"gpool": [tenants.start("server", [*half, "--class", "latency"]),
                           tenants.start("trainer", [*half, "--class", "train"])],
                 "plain": [tenants.start("plain server"), tenants.start("plain trainer")]}
        for work in (infer, part):
            prepare([(server, work) for server, _ in pairs.values()])
        prepare([(trainer, train) for _, trainer in pairs.values()])
        warm_up(suite, pairs["plain"][1], train)
        step_ms = 1e3 / run_together([(pairs["plain"][0], part)], 1)[0]["rate"]
        # In two turns as many short ones as a 99th percentile needs, with some to spare: they come at random.
        short_s, long_s = (1.5, 1.5) if suite.simulated else (suite.seconds(6.6), suite.seconds(4))
        kinds += [Kind("", infer, 1, SHORT_RATE, short_s),
                  Kind("long.", part, max(1, round(LONG_MS / step_ms)), LONG_RATE, long_s)]
        # Each in turn and the other way round: what changes with time changes both.
        for turn, who in enumerate(["gpool", "plain", "plain", "gpool"]):
            one_turn(kinds, who, *pairs[who], train, seed=turn // 2)


def one_turn(kinds, who, server, trainer, train, seed):
    """Requests alone and beside the training, which come at the same moments for both pairs."""
    alone = run_together([(trainer, train)], 0.8)[0]["rate"]
    for kind in kinds:
        requests(server, kind, seed, now_ns(), (who, "alone"))
        begin = now_ns()
        end = begin + LEAD_NS + int(kind.seconds * 1e9)
        is_told = who == "gpool" and not kind.name
        if is_told:
            # Another promise begins to be measured anew.
            gpool("update", server.lease, "--p99", f"{500 + len(kind.told)}ms")
        trainer.tell("run", work=train, begin_ns=begin, end_ns=end, depth=4, skip_ns=LEAD_NS)
        requests(server, kind, seed, begin + LEAD_NS, (who, "beside"))
        kind.training[who].append(trainer.hear(kind.seconds + 60)["rate"] / alone)
        if is_told:
            time.sleep(TOLD_AFTER_S)
            kind.told.append(lease(server.lease).get("requests"))


def requests(server, kind, seed, begin_ns, key):
    answer = server.ask("requests", work=kind.work, steps=kind.steps, rate=kind.rate, seeds=[seed], begin_ns=begin_ns,
                        end_ns=begin_ns + int(kind.seconds * 1e9))
    kind.times[key] += answer["milliseconds"]
    kind.served[key] += answer["served"]


def figures(record, kind):
    """Controls are the same without gpool. Beside the training a short request may take as long as a plain one alone, and
    what it waits: gpool's own alone would let a slow gpool have more."""
    is_long, name = bool(kind.name), f"latency.{kind.name}"
    if not all(kind.times.values()) or not all(kind.training.values()):
        record.note(f"{name}* is left out: not all of its turns have come")
        return
    events = min(len(values) for values in kind.times.values())
    # Of some sixty long ones the 99th percentile would be the slowest one.
    parts = [("p50", 0.5), ("p90", 0.9), ("p95", 0.95)] if is_long else [("p50", 0.5), ("p95", 0.95), ("p99", 0.99)]
    for shown, part in parts:
        at = lambda *key: percentile(kind.times[key], part)
        for where in ("alone", "beside"):
            is_judged = where == "beside" and not is_long and part > 0.5 and (part < 0.99 or events >= TAIL_EVENTS)
            aim = f"<= {at('plain', 'alone') + WAIT_MS:.2f}" if is_judged else None
            times = kind.times["gpool", where]
            detail = {"requests": len(times), "interval": interval_of(lambda drawn: percentile(drawn, part), times)}
            record.figure(f"{name}{shown}_{where}", at("gpool", where), "ms", at("plain", where), aim, detail)
    if not is_long and events < TAIL_EVENTS:
        record.note(f"latency.p99_beside is not judged: {events} events, {TAIL_EVENTS} are needed")
    if is_long:
        # What they wait for each other is in it, whoever is beside: shown, and judged below.
        ratio(record, f"{name}p90_ratio", kind, kind.times, 0.9)
        ratio(record, f"{name}served_p90_ratio", kind, kind.served, 0.9)
        added(record, f"{name}added_p90_ratio", kind)
    else:
        ratio(record, f"{name}p99_ratio", kind, kind.times, 0.99)
        told(record, kind)
    mean = lambda ratios: sum(ratios) / len(ratios)
    record.figure(f"{name}training", mean(kind.training["gpool"]), "ratio", mean(kind.training["plain"]))


def told(record, kind):
    """What gpool tells of requests over what they took by themselves: beside the training, and of what they would take alone over what
    they took alone. Theirs begin when they come and end when the program knows; gpool's are of the GPU."""
    for shown, field, where, part in [("p50", "p50_ns", "beside", 0.5), ("p99", "p99_ns", "beside", 0.99),
                                      ("p99_alone", "p99_alone_ns", "alone", 0.99)]:
        values = [its[field] / 1e6 for its in kind.told if its and its.get(field)]
        if values:
            own = percentile(kind.times["gpool", where], part)
            aim = "0.7 to 1.1" if part < 0.99 else None
            record.figure(f"latency.told.{shown}", sum(values) / len(values) / own, "ratio", aim=aim, detail={"told": values})


def added(record, name, kind):
    """What the training adds to a request, over what one takes alone: each is laid beside the same one alone, which came at the
    same moment and waited for the same others."""
    at = lambda who: [beside - alone for beside, alone in zip(kind.served[who, "beside"], kind.served[who, "alone"])]
    usual = {who: percentile(kind.served[who, "alone"], 0.5) for who in ("gpool", "plain")}
    figure = lambda who: lambda differences: 1 + percentile(differences, 0.9) / usual[who]
    detail = {"interval": interval_of(figure("gpool"), at("gpool")), "requests": len(at("gpool")),
              "slowest": sorted(at("gpool"))[-12:]}
    record.figure(name, figure("gpool")(at("gpool")), "ratio", figure("plain")(at("plain")), "<= 1.1", detail)


def ratio(record, name, kind, times, part, aim=None):
    """A percentile beside the training over the same alone."""
    beside_alone = lambda beside, alone: percentile(beside, part) / percentile(alone, part)
    ours, control = ([times[who, where] for where in ("beside", "alone")] for who in ("gpool", "plain"))
    detail = {"interval": interval_of(beside_alone, *ours), "interval_control": interval_of(beside_alone, *control),
              "requests": len(ours[0]), "steps": kind.steps, "slowest": sorted(ours[0])[-12:],
              "slowest_control": sorted(control[0])[-12:]}
    record.figure(name, beside_alone(*ours), "ratio", beside_alone(*control), aim, detail)
