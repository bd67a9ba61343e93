"""A page of one run for docs/measurements: tables, and a picture for each stage that has something to show.

    target/gpu-bundle/run --page out/gpu.json docs/measurements/2026-11-22-h200.md
"""

import json
import os

from . import picture
from .record import RUNNING, apart, interval_in, shown, shown_interval, verdict

# Steps of the driver's own suspending, as earlier results have their seconds.
DRIVER_STEPS = {"suspend": "cuCheckpointProcessCheckpoint", "resume": "cuCheckpointProcessRestore"}

# Names of figures that one picture shows, by their beginning; its title; the unit.
PICTURES = [
    ("cost", "cost.", "Time for the same work, one tenant alone", "ratio"),
    ("shares", "share.", "Worst deviation of a share", "points"),
    ("latency", "latency.", "A request, alone and beside training", "ms"),
    ("many", "many.", "Work of small tenants together", "ratio"),
    ("unequal", "unequal.", "Unequal tenants in pairs, over their shares", "ratio"),
]


def write(results, page):
    """Writes `page` and its pictures, `PAGE-NAME.svg`, from the file `results`, or from several of one day, of which the
    later ones have the last word. Answers the paths."""
    runs = []
    for path in results.split(","):
        with open(path) as file:
            runs.append(json.load(file))
    data = merged(runs)
    base = os.path.splitext(page)[0]
    paths, pictures = [page], []
    for name, beginning, title, unit in PICTURES:
        rows = [(key.removeprefix(beginning) + mark(data, entry), [entry["value"], entry.get("native")])
                for key, entry in data["figures"].items()
                if key.startswith(beginning) and entry["unit"] == unit and is_number(entry["value"])]
        if rows:
            pictures.append((name, picture.bars(title, unit, ["gpool", "control"], rows)))
    if data.get("limits"):
        pictures.append(("limits", picture.scatter("Ceilings: received beside asked for",
                                                   [(item["limit"], item["received"]) for item in data["limits"]])))
    for name, image in pictures:
        paths.append(f"{base}-{name}.svg")
        with open(paths[-1], "w") as file:
            file.write(image)
    with open(page, "w") as file:
        file.write(text(data, [os.path.basename(path) for path in paths[1:]]))
    return paths


def merged(runs):
    """Several runs of one kind as one: each stage, with all its figures, as the last run has it that ended it, or that came
    furthest in it. Raises SystemExit if they are of different machines or of different work."""
    data = {"about": runs[-1]["about"], "figures": {}, "stages": {}, "notes": [], "runs": []}
    for run in runs:
        for fact in ("gpu", "driver", "simulated", "brief", "torch"):
            if run["about"].get(fact) != data["about"].get(fact):
                raise SystemExit(f"these runs cannot stand on one page: {fact} is {run['about'].get(fact)} in the one of "
                                 f"{run['about']['date']}, {data['about'].get(fact)} in the last")
        data["runs"].append({**run["about"], "stages": ", ".join(run["stages"])})
        for name, stage in run["stages"].items():
            if name in data["stages"] and weight(stage) < weight(data["stages"][name]):
                continue
            data["stages"][name] = stage
            data["figures"] = {key: entry for key, entry in data["figures"].items() if entry.get("stage") != name}
            data["figures"].update({key: entry for key, entry in run["figures"].items() if entry.get("stage") == name})
            if name == "shares" and run.get("limits"):
                data["limits"] = run["limits"]
        data["notes"] += [note for note in run["notes"] if note not in data["notes"]]
    return data


def weight(stage):
    """How far a stage came: not at all for want of time, not at all for a reason, to a part of its figures, to its end."""
    outcome = stage["outcome"].split(":")[0]
    return {"done": 3, "failed": 2, "stopped": 2, RUNNING: 2, "skipped": 1}.get(outcome, 0)


def text(data, images):
    about = data["about"]
    head = "a simulated GPU: this tests the suite and says nothing about a real one" if about["simulated"] else about.get("gpu", "?")
    lines = [f"# {about['date'][:10]}: {head}", "", "| | |", "|---|---|"]
    # What a program has printed is in the file of results; a cell of a table has one line.
    lines += [f"| {key} | {cell(value)} |" for key, value in about.items()
              if not isinstance(value, (dict, list)) and "\n" not in str(value)]
    if len(data["runs"]) > 1:
        lines += ["", "## Runs", "", "| date | commit | stages |", "|---|---|---|"]
        lines += [f"| {run['date']} | {run['commit']} | {run['stages']} |" for run in data["runs"]]
    lines += table("Builds", ["file", "build id", "runs"], builds(data["runs"]))
    lines += ["", "## Stages", "",
              "| stage | outcome | seconds | clock: least, median, most | why it is not higher |", "|---|---|---|---|---|"]
    lines += [f"| {name} | {stage['outcome']} | {stage['seconds']} | {clocks(stage)} | {reasons(stage)} |"
              for name, stage in data["stages"].items()]
    lines += ["", "## Figures", "", "Controls are the same work in the same run without gpool.", "",
              "| figure | value | unit | control | aim | |", "|---|---|---|---|---|---|"]
    for name, entry in data["figures"].items():
        value, aim, detail = entry["value"], entry.get("aim"), entry.get("detail")
        said = verdict(value, aim, interval_in(detail), apart(data["figures"], name))
        lines.append(f"| {name} | {cell(shown(value))}{shown_interval(detail)} | {entry['unit']} "
                     f"| {shown(entry.get('native'))} | {cell(aim or '')} "
                     f"| {said}{mark(data, entry)} |")
    lines += seconds(data) + ceilings(data) + unequal(data)
    lines += [""] + [f"![{image}]({image})" for image in images]
    lines += ["", "## Notes of the run", ""] + [f"- {note}" for note in data["notes"] or ["none"]]
    lines += ["", "## What surprised", "", "## What was not measured", ""]
    not_run = [name for name, stage in data["stages"].items() if stage["outcome"] != "done"]
    lines += [f"- {name}: {data['stages'][name]['outcome']}" for name in not_run]
    return "\n".join(lines) + "\n"


def table(heading, columns, rows):
    """The lines of a section with one table; none without rows."""
    if not rows:
        return []
    lines = ["", f"## {heading}", "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    return lines + [f"| {' | '.join(cell(value) for value in row)} |" for row in rows]


def builds(runs):
    """What ran, of each file each build id, with the runs that had it."""
    found = {}
    for run in runs:
        its = run.get("builds", {})
        files = {name: its.get(name) for name in ("supervisor", "gpool")}
        files.update((f"shim {name}", id_) for name, id_ in its.get("shims", {}).items())
        for name, id_ in files.items():
            if id_:
                found.setdefault((name, id_), []).append(run["date"])
    return [(name, id_, ", ".join(dates)) for (name, id_), dates in found.items()]


def seconds(data):
    """How long moving a tenant's memory out and back took, which the figures have as a speed."""
    rows = [(name + mark(data, entry), shown(its)) for name, entry in data["figures"].items()
            if name.startswith("checkpoint.") and is_number(its := seconds_of(data["figures"], name))]
    return table("Seconds of suspending and resuming", ["figure", "seconds"], rows)


def seconds_of(figures, name):
    """Those of one figure, or None. Of the driver's own steps earlier results have them beside what was suspended alone."""
    detail = figures[name].get("detail")
    if isinstance(detail, dict) and "seconds" in detail:
        return detail["seconds"]
    for what, step in DRIVER_STEPS.items():
        beginning, word, end = name.rpartition(what)
        steps = figures.get(f"{beginning}suspend{end}", {}).get("detail") if word else None
        if isinstance(steps, dict) and step in steps:
            return steps[step]
    return None


def ceilings(data):
    """Each size of a step under each ceiling. Earlier results have no windows of one, or some that overlap."""
    cells = data.get("limits") or []
    rows = [(its["work"], its["limit"], shown(its["received"]), shown(its.get("gpu_time")),
             shown((its["received"] - its["limit"]) * 100), shown(its.get("mae_1s")), shown(its.get("windows"))) for its in cells]
    columns = ["work", "ceiling", "of the work without one", "of the GPU's time", "error, points",
               "mean error of a second, points", "windows of a second"]
    lines = table("Ceilings", columns, rows)
    if any("windows" in its for its in cells):
        count = sum(its.get("windows") or 0 for its in cells)
        lines += ["", f"`limit.mae_1s` is of {count} windows of a second, no two of which have anything in common. Of the GPU's time "
                      "there is a figure where a turn is long enough for the supervisor to count it."]
    return lines


def unequal(data):
    """Each tenant of a pair of unequal ones, under each split."""
    rows = []
    for name, entry in data["figures"].items():
        its = entry.get("detail")
        if name.startswith("unequal.") and isinstance(its, dict) and "share" in its:
            rows.append((name.removeprefix("unequal.") + mark(data, entry), its["share"], shown(its["of_alone"]), shown(entry["value"]),
                         shown(its["charged"]), shown(entry.get("native"))))
    columns = ["tenant", "share", "of what it does alone", "of that over its share", "of the GPU's time, as charged",
               "without gpool, over a half"]
    return table("Unequal tenants", columns, rows)


def mark(data, entry):
    """What stands beside a figure of a stage that did not end well: it may be of a part of the work, or of the wrong one."""
    outcome = data["stages"].get(entry.get("stage"), {}).get("outcome", "unknown")
    return "" if outcome == "done" else f" (stage {outcome.split(':')[0]})"


def clocks(stage):
    """Of the multiprocessors while the stage ran, if that was told."""
    seen = stage.get("gpu", {}).get("clock_mhz")
    return f"{', '.join(f'{mhz:.0f}' for mhz in seen)} MHz" if seen else ""


def reasons(stage):
    return ", ".join(stage.get("gpu", {}).get("reasons", []))


def cell(value):
    return str(value).replace("|", "\\|").replace("\n", " ")


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value and abs(value) != float("inf")
