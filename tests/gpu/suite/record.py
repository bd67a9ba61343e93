"""What was measured: printed as a short table, and written as JSON after each figure, so that a run that is stopped
leaves what it has."""

import json
import os
import random
import statistics


# The outcome of a stage that has begun: what is left of a run that was killed in it says so.
RUNNING = "running"
# What a figure of a plain process beside another one is called, behind the name of the figure of gpool beside a plain one.
CONTROLS = ["twin", "noise"]


class Skipped(Exception):
    """A stage that cannot be run here; the sentence says why."""


class Record:
    """Figures, each with its unit and, where there is one, the control of the same run and the aim. A `detail` may have an
    `interval`, in which the value is likely to lie."""

    def __init__(self, path, about):
        self.path, self.data = path, {"about": about, "figures": {}, "stages": {}, "notes": []}
        # Whose figures are being measured.
        self.running = None
        keep_earlier(path)

    def figure(self, name, value, unit, native=None, aim=None, detail=None):
        """`aim` is a text such as "<= 1.005" or "0.48 to 0.52", judged only for the table. What two plain processes differ by,
        `NAME.twin` or `NAME.noise`, is to be there before."""
        entry = {"value": value, "unit": unit, "native": native, "aim": aim, "detail": detail, "stage": self.running}
        self.data["figures"][name] = {key: item for key, item in entry.items() if item is not None}
        print(f"  {name:44}{shown(value):>12} {unit:8}{shown(native):>12}  {aim or '':10}"
              f"{verdict(value, aim, interval_in(detail), apart(self.data['figures'], name))}{shown_interval(detail)}", flush=True)
        self.write()

    def begin(self, stage):
        """Whatever is measured from now on is of `stage`."""
        self.running = stage
        self.stage(stage, RUNNING, 0)

    def note(self, text):
        self.data["notes"].append(text)
        print(f"  {text}", flush=True)
        self.write()

    def stage(self, name, outcome, seconds, gpu=None):
        """`gpu` is what the device was seen to be like meanwhile."""
        self.data["stages"][name] = {"outcome": outcome, "seconds": round(seconds, 1), **({"gpu": gpu} if gpu else {})}
        self.write()

    def write(self):
        new = self.path + ".new"
        with open(new, "w") as file:
            json.dump(self.data, file, indent=1)
        os.replace(new, self.path)


def keep_earlier(path):
    """What an earlier run has left in the same folder is renamed: a run that breaks off at once must not cost it."""
    base, end = os.path.splitext(path)
    number = 1
    while os.path.exists(f"{base}.{number}{end}"):
        number += 1
    if os.path.exists(path):
        os.replace(path, f"{base}.{number}{end}")


def shown(value):
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def interval_in(detail):
    """The interval of a figure that has one."""
    return detail.get("interval") if isinstance(detail, dict) else None


def shown_interval(detail):
    found = interval_in(detail)
    return f" ({shown(found[0])} to {shown(found[1])})" if found else ""


def verdict(value, aim, interval_=None, apart_=0.0):
    """Whether `value` keeps `aim`: empty if it does, or without one. It is undecided where one end of the interval keeps it
    and the other one does not, and where `value` is nearer to the aim than `apart_`, which two that are alike differ by."""
    if not aim or not isinstance(value, (int, float)):
        return ""
    kept = keeps(value, aim)
    if distance(value, aim) < apart_ or (interval_ and any(keeps(end, aim) != kept for end in interval_)):
        return "undecided"
    return "" if kept else "missed"


def apart(figures, name):
    """What two plain processes differ by in the figure `name`: the greater of what is known of that, 0 if nothing is."""
    controls = [figures.get(f"{name}.{control}", {}).get("value") for control in CONTROLS]
    # A ratio that is not a number says nothing.
    return max((abs(value - 1) for value in controls if isinstance(value, (int, float)) and value == value), default=0.0)


def distance(value, aim):
    """From `value` to where keeping `aim` begins or ends."""
    first, second, *rest = aim.split()
    return min(abs(value - float(bound)) for bound in ([first, *rest] if second == "to" else [second]))


def keeps(value, aim):
    first, second, *rest = aim.split()
    if second == "to":
        return float(first) <= value <= float(rest[0])
    bound = float(second)
    return {"<=": value <= bound, ">=": value >= bound, "==": value == bound}[first]


def percentile(values, part):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else float("nan")


def median(values):
    ordered = list(values)
    return statistics.median(ordered) if ordered else float("nan")


def interval(values, resamples=1000):
    """In what 95 % of the medians lie of as many of `values`, drawn again and again (bootstrap): the same for the same
    values, always."""
    return interval_of(median, values, resamples=resamples)


def interval_of(figure, *samples, resamples=1000):
    """The same of whatever `figure` makes of several samples, each of which is drawn for itself."""
    chance, samples = random.Random(1), [list(values) for values in samples]
    found = sorted(figure(*[chance.choices(values, k=len(values)) for values in samples]) for _ in range(resamples))
    return [found[int(resamples * 0.025)], found[int(resamples * 0.975) - 1]]
