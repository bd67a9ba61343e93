"""Whether the suite for a real GPU says missed where an aim is missed, nothing where it is kept, and undecided where what two plain
processes differ by could make the one of the other.

Prints a line for each verdict that is another one than is right, what the stage `cost` says of three works, and the stage `streams` of
three devices.
"""

import contextlib
import io
import tempfile

from suite.record import Record, apart, verdict
from suite.stages import cost, streams

AIM = "<= 1.005"
# A value; its interval; what is told of plain processes; what is to be said. Most are of a run on an H200.
CASES = [
    (1.025, (1.011, 1.037), {"twin": 0.9997, "noise": 1.0003}, "missed"),
    (1.033, (1.02, 1.052), {"noise": 0.9965}, "missed"),
    (1.014, (1.007, 1.027), {"twin": 0.9985}, "missed"),
    (1.2, (1.19, 1.21), {"twin": 1.03, "noise": 1.08}, "missed"),
    (1.046, (1.015, 1.087), {"twin": 0.9706, "noise": 1.044}, "undecided"),
    (1.04, (1.007, 1.159), {"twin": 0.9961, "noise": 1.076}, "undecided"),
    (1.04, (1.007, 1.159), {"twin": 0.9961}, "missed"),
    (1.004, (1.003, 1.0045), {"twin": 1.0044}, "undecided"),
    (1.015, (0.984, 1.037), {}, "undecided"),
    (1.0, (0.9995, 1.001), {"twin": 0.9998, "noise": 1.0001}, ""),
    (0.95, (0.94, 0.96), {"twin": 1.03, "noise": 1.04}, ""),
    (1.0, None, {}, ""),
    (1.006, None, {}, "missed"),
    (1.006, None, {"twin": float("nan"), "noise": None}, "missed"),
]


def figures_of(name, controls):
    return {f"{name}.{control}": {"value": value} for control, value in controls.items()}


for value, interval, controls, right in CASES:
    said = verdict(value, AIM, interval, apart(figures_of("cost.some", controls), "cost.some"))
    if said != right:
        print(f"of {value} beside {controls}: {said!r}, not {right!r}")
# With two ends, and of the figures of others.
for value, aim, apart_, right in [(0.49, "0.48 to 0.52", 0.02, "undecided"), (0.5, "0.48 to 0.52", 0.01, ""), (7, "== 7", 0, ""),
                                  (6, "== 7", 0, "missed"), (0.97, ">= 0.98", 0, "missed")]:
    if verdict(value, aim, None, apart_) != right:
        print(f"of {value} for {aim}: {verdict(value, aim, None, apart_)!r}, not {right!r}")
if found := apart(figures_of("cost.some.joined", {"twin": 2.0}), "cost.some"):
    print(f"{found} is of another figure")


def turns(rates):
    return {round_: {"rate": rate} for round_, rate in enumerate(rates)}


def work(name, ours, twin):
    """As the stage has it of a plain process that does 100 steps a second in each round."""
    gaps = {who: [[10.0] * 3] * len(ours) for who in ("gpool", "native")}
    rates = {"native": [100] * len(ours), "gpool": [100 / ratio for ratio in ours], cost.TWIN: [100 / ratio for ratio in twin]}
    return cost.figures(record, name, {who: turns(its) for who, its in rates.items()}, gaps)


with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as table:
    record = Record(f"{folder}/gpu.json", {})
    works = {"train": work("train", [1.05] * 6, [1.0001] * 6),
             "matmul": work("matmul", [1.0001] * 6, [0.9999] * 6),
             "decode": work("decode", [1.04] * 9, [0.93, 1.07, 1.0] * 3)}
    cost.means(record, list(works), works)
    cost.means(record, [*works, "lost"], works)
for line in table.getvalue().splitlines():
    name, *rest = line.split()
    if AIM in line and not name.endswith("_pooled"):
        print(name, next((word for word in rest if word in ("missed", "undecided")), "kept"))
    elif "lost" in line:
        print(line.strip())


def rounds(plain, slower):
    """As the stage has them of steps of 10 ms and more: of a plain process and of one with a share."""
    return [(plain, plain / ratio) for ratio in (slower, slower * 1.001, slower * 0.999, slower)]


with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as table:
    record = Record(f"{folder}/gpu.json", {})
    # What is measured costs steps of both kinds the same; it is the streams that cost; the device has no streams beside each other.
    streams.figures(record, "measured", 10_000_000, rounds(100, 1.05), rounds(50, 1.05))
    streams.figures(record, "held_back", 10_000_000, rounds(100, 1.05), rounds(50, 1.001))
    streams.figures(record, "one_by_one", 10_000_000, rounds(50, 1.05), rounds(50, 1.001))
for name in ("measured", "held_back", "one_by_one"):
    line = next(line.split() for line in table.getvalue().splitlines() if line.split()[0] == f"streams.{name}")
    print(f"streams.{name}", next((word for word in ("missed", "undecided") if word in line), "kept" if "<=" in line else "not judged"))
