"""The suite for a real GPU. See ../README.md."""

import argparse
import datetime
import glob
import importlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import traceback

from . import host, machine, page, tenant
from .deadline import DEADLINE, RESERVE_S, RunOver, StageTimeout
from .libraries import build_id
from .nvml import Nvml
from .record import Record, Skipped
from .watch import Watch

# In the order in which they run; the first ones matter most when time is short. Each of the first three fits into the budget,
# also where PyTorch is read for the first time; all together do not.
PARTS = {"1": ["environment", "cost", "shares"],
         "2": ["latency", "lending", "memory", "many", "timeslices"],
         # Mostly short ones.
         "3": ["answers", "graphs", "told", "checkpoint", "caps", "spill", "streams", "unequal", "power"],
         # With --hami.
         "hami": ["cost", "shares", "memory"]}
STAGES = PARTS["1"] + PARTS["2"] + PARTS["3"]
# What runs where nobody says what is to run.
DEFAULT_PART = "1"
# How long the first import of PyTorch may hold up the first stage.
READING_S = 90
# What a stage may need beyond its plan to end cleanly; for the last one the reserve of the run is there.
STAGE_END_S = 15
# A stage that takes so many times its plan is given up; the least holds also where those after it have no time then.
PATIENCE, LEAST_PATIENCE = 2, 1.25
# A stage begins if this part of its plan is left: it is given up in time, and figures that it has by then count.
LEAST_PART = 0.6
# What may be used of the device when a stage has ended beyond what was before the first one, and how long that may last; how
# long leases may.
LEFT_BYTES, LEFT_S, LEASES_LEFT_S = 64 << 20, 3, 15
# What bringing gpool up, or asking it something, may end with.
GPOOL_ERRORS = (host.HostError, OSError, subprocess.SubprocessError, ValueError, LookupError)
# Of so many processors one is kept for what is measured, and so many are left at the least for all else.
MANY_CORES, LEAST_LEFT = 8, 4
# How much longer stages take that measure HAMi-core beside ours.
HAMI_TIMES = {"cost": 1.42, "shares": 1.3, "memory": 1.5}
# The part of the planned time that a brief run takes, and that of a stage, which also starts its tenants.
BRIEF, BRIEF_STAGE = 0.35, 0.6


def stage(name):
    return importlib.import_module(f"{__package__}.stages.{name}")


def options():
    parser = argparse.ArgumentParser(prog="gpu-suite", description=__doc__)
    parser.add_argument("--stages", help="comma-separated, in the order in which they are to run")
    parser.add_argument("--part", choices=sorted(PARTS),
                        help=f"stages that fit into one budget: 1, 2 and 3 are all, and {DEFAULT_PART} is what runs by default")
    parser.add_argument("--budget", type=float, default=540,
                        help=f"seconds, of which {RESERVE_S} are kept for the end: no stage begins for most of which there is no "
                             "time, and none goes on until then")
    parser.add_argument("--brief", action="store_true", help="a third of the time for each figure: to see that all works")
    parser.add_argument("--out", default="out", help="where results go")
    parser.add_argument("--bundle", default=os.path.dirname(tenant.SUITE), help="where gpool's files are")
    parser.add_argument("--simulated", action="store_true", help="the GPU is simulated: kernels have a length and no effect")
    parser.add_argument("--hami", help="a folder with a build of HAMi-core (libvgpu.so), to be measured beside")
    parser.add_argument("--page", nargs=2, metavar=("RESULTS", "PAGE"),
                        help="write a page with pictures from a gpu.json, or several with commas between, and end")
    parser.add_argument("--list", action="store_true", help="list the stages with their planned seconds")
    return parser.parse_args()


class NoGpu(Exception):
    """There is none here that answers."""


class Suite:
    """What a stage gets. `host` is None until gpool is brought up, and where it cannot be; only stages that do not need it
    run then."""

    def __init__(self, chosen, record, folder):
        self.options, self.record, self.simulated = chosen, record, chosen.simulated
        self.nvml, self.hami, self.folder, self.host = open_nvml(), chosen.hami, folder, None
        # Whether HAMi-core's limit of compute is obeyed here, by the work with which that was tried.
        self.hami_obeys = {}
        # Steps a second of a plain process in turns before gpool was brought up, and in turns afterwards.
        self.around = [], []
        # Who was on the device before the first stage.
        self.before = None
        # The processor on which costs are measured; everything that the suite starts stays away from it if there are many.
        self.core = keep_core()
        # What looks at the device while a stage runs.
        self.watch = None
        self.has_torch = not chosen.simulated and importlib.util.find_spec("torch") is not None

    def seconds(self, planned):
        """How long a measurement that is planned for `planned` seconds takes in this run."""
        return planned * BRIEF if self.options.brief else planned

    def shims(self):
        """Build ids of the shims that tenants with a share may have: those of this bundle, and where a supervisor ran
        already those that are installed."""
        folders = [os.path.join(self.options.bundle, "lib")]
        if self.host and not self.host.is_own:
            folders.append(host.PLACES["lib"])
        files = [file for folder in folders for file in glob.glob(f"{folder}/*/libgpool-cuda.so")]
        return {build_id(file) for file in files} - {None}

    def choose(self, torch, plain, simulated):
        """The work for this machine: with PyTorch, without it, on a simulated GPU."""
        return simulated if self.simulated else torch if self.has_torch else plain


def keep_core():
    """The last processor of this machine, taken from this process and all that it starts unless there are few; with those
    that are threads of the same core, because what computes on one slows down the other, unless few would be left."""
    core, cores = machine.own_core(), sorted(os.sched_getaffinity(0))
    if len(cores) >= MANY_CORES:
        beside = {core, *machine.thread_siblings(core)}
        others = [other for other in cores if other not in beside]
        os.sched_setaffinity(0, others if len(others) >= LEAST_LEFT else cores[:-1])
    return core


def open_nvml():
    """The driver's NVML, wherever it lies."""
    found = [path for directory in host.LIBRARY_DIRECTORIES for path in glob.glob(f"{directory}/libnvidia-ml.so.1")]
    for path in ["libnvidia-ml.so.1", *found, f"{tenant.SIMULATED_LIBRARIES}/libnvidia-ml.so.1"]:
        try:
            return Nvml(path)
        except OSError:
            continue
    raise NoGpu("no GPU (no NVML answers)")


def about(suite_options):
    bundle = suite_options.bundle
    facts = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        # Of the programs, and of the suite itself, which may have been changed since they were built.
        "commit": written(bundle, "COMMIT"), "suite_commit": written(bundle, "SUITE_COMMIT"),
        "kernel": platform.release(), "libc": " ".join(platform.libc_ver()), "python": platform.python_version(),
        "cores": os.cpu_count(), "simulated": suite_options.simulated, "brief": suite_options.brief,
        # Without it the same figures are of other work.
        "torch": importlib.util.find_spec("torch") is not None,
    }
    return {**facts, **open_nvml().facts()}


def written(bundle, name):
    """The text of a file of the bundle."""
    path = os.path.join(bundle, name)
    if not os.path.exists(path):
        return "unknown"
    with open(path) as file:
        return file.read().strip()


def main():
    chosen = options()
    if chosen.list:
        for name in STAGES:
            part = next(part for part, its in PARTS.items() if name in its)
            print(f"{name:14}{stage(name).SECONDS:5} s  part {part}  {stage(name).__doc__.splitlines()[0]}")
        return 0
    if chosen.page:
        print("\n".join(page.write(*chosen.page)))
        return 0
    names = chosen.stages.split(",") if chosen.stages else PARTS[chosen.part or DEFAULT_PART]
    unknown = [name for name in names if name not in STAGES]
    if unknown:
        print(f"there is no stage {unknown[0]!r}; the stages are {', '.join(STAGES)}", file=sys.stderr)
        return 2
    if chosen.part == "hami" and not chosen.hami:
        print("the part hami wants --hami FOLDER", file=sys.stderr)
        return 2
    if chosen.hami:
        # Tenants have another working directory.
        chosen.hami = os.path.abspath(chosen.hami)
        if not os.path.isfile(os.path.join(chosen.hami, "libvgpu.so")):
            print(f"there is no libvgpu.so in {chosen.hami}: --hami wants a folder with a build of HAMi-core",
                  file=sys.stderr)
            return 2
    if chosen.budget <= RESERVE_S:
        print(f"of the budget {RESERVE_S} s are kept for the end: {chosen.budget:.0f} s are none", file=sys.stderr)
        return 2
    DEADLINE.begin(chosen.budget)
    try:
        return measure(chosen, names)
    except RunOver as why:
        print(f"the run is cut short: {why}", flush=True)
        return 1


def measure(chosen, names):
    """Runs these stages with a record of them, if there is a GPU; answers the suite's exit status. Raises RunOver once nothing
    of them is left running, if the time was up or somebody stopped it."""
    try:
        facts = about(chosen)
    except NoGpu as why:
        print(f"skipped: {why}", flush=True)
        return 0
    os.makedirs(chosen.out, exist_ok=True)
    record = Record(os.path.join(chosen.out, "gpu.json"), facts)
    try:
        return run(chosen, names, record)
    finally:
        # Also where clearing up has failed on top of it.
        if isinstance(DEADLINE.given_up, RunOver):
            cut_short(record, names, DEADLINE.given_up)


def run(chosen, names, record):
    """Runs these stages, and takes away what that needs on this machine; answers the suite's exit status."""
    record.write()
    record.data["about"]["machine"] = machine.facts()
    print(json.dumps(record.data["about"]), flush=True)
    if why := unfit():
        record.data["about"]["refused"] = why
        record.note(f"skipped: {why}")
        return 0
    own = host.Host(chosen.bundle, chosen.out, pin(), "timeslices" in names)
    with tempfile.TemporaryDirectory(prefix="gpool-suite-") as folder:
        suite = Suite(chosen, record, folder)
        try:
            prepare(suite, own, names)
            failed = run_stages(suite, names)
        finally:
            own.__exit__()
    return 1 if failed or not suite.host else 0


def prepare(suite, own, names):
    """All that comes before the first stage."""
    read_libraries(suite)
    if "cost" in names and not own.tries_time_slices and not host.answers():
        stage("cost").around(suite, lambda: bring_up(suite, own))
    else:
        # Time slices are tried only while nobody else is on the GPU.
        bring_up(suite, own)
    about_gpool(suite)
    look_around(suite)
    left = f"{DEADLINE.left():.0f} s left of {suite.options.budget:.0f}, beside the {RESERVE_S} for the end"
    suite.record.note(f"the first stage begins with {left}")


def run_stages(suite, names):
    """Answers the names of those that failed."""
    plans, failed = [planned_seconds(suite, name) for name in names], []
    for at, name in enumerate(names):
        DEADLINE.check()
        if run_stage(suite, name, plans[at + 1:]) == "failed":
            failed.append(name)
    DEADLINE.check()
    DEADLINE.end_begins()
    return failed


def cut_short(record, names, why):
    """What was measured stands; what was not says so."""
    record.data["about"]["cut_short"] = str(why)
    for name in names:
        if name not in record.data["stages"]:
            record.stage(name, "not begun", 0)
    record.write()


def bring_up(suite, own):
    """gpool on this machine, as the suite's host; where that cannot be, why is told."""
    try:
        suite.host = own.__enter__()
    except GPOOL_ERRORS as error:
        suite.record.note(f"gpool cannot be brought up here: {type(error).__name__}: {error}")
        return
    for text in own.notes:
        suite.record.note(text)


def read_libraries(suite):
    """Imports PyTorch before anything else: whoever does that first after a machine's start waits for gigabytes to be read,
    and that must be nobody who is measured, compared or tried, nor be done beside them."""
    if not suite.has_torch:
        return
    begun, quiet, how = time.monotonic(), subprocess.DEVNULL, ""
    try:
        subprocess.run([sys.executable, "-c", "import torch"], stdin=quiet, stdout=quiet, stderr=quiet, timeout=READING_S)
    except subprocess.TimeoutExpired:
        how = " and had not ended"
    suite.record.note(f"importing PyTorch took {time.monotonic() - begun:.1f} s{how}")


def planned_seconds(suite, name):
    return (stage(name).SECONDS * (BRIEF_STAGE if suite.options.brief else 1)
            * (HAMI_TIMES.get(name, 1) if suite.hami else 1))


def patience(planned, left, later):
    """After how many seconds a stage is given up, if the run is not before: those after it, planned for `later`, are to run all
    the same, and each has to end as well."""
    spared = left - sum(later) - STAGE_END_S * len(later)
    return max(planned * LEAST_PATIENCE, min(planned * PATIENCE, spared))


def run_stage(suite, name, later):
    """`later` is what the stages after it are planned for, each."""
    module, record, left, planned = stage(name), suite.record, DEADLINE.left(), planned_seconds(suite, name)
    if suite.host is None and getattr(module, "NEEDS_GPOOL", True):
        record.stage(name, "skipped: gpool cannot be brought up here", 0)
        return "skipped"
    if planned * LEAST_PART > left:
        record.note(f"{name}: skipped, it is planned for {planned:.0f} s and {left:.0f} s are left")
        record.stage(name, "no time", 0)
        return "no time"
    print(f"{name}: {module.__doc__.splitlines()[0]} (about {planned:.0f} s)", flush=True)
    start, outcome, watch = time.monotonic(), "stopped", Watch(suite.nvml)
    suite.watch = watch
    try:
        record.begin(name)
        with watch, DEADLINE.stage(patience(planned, left, later)):
            module.run(suite)
        outcome = "done"
    except Skipped as why:
        outcome = f"skipped: {why}"
        record.note(f"{name}: {outcome}")
    except RunOver as why:
        outcome = f"stopped: {why}"
        raise
    except (Exception, StageTimeout) as error:  # One stage's failure is a result, whatever it is; the others still count.
        outcome = "failed"
        record.note(f"{name}: FAILED, {type(error).__name__}: {error}")
        traceback.print_exc()
    finally:
        # Its time may have been up in the moment in which it ended.
        DEADLINE.end_stage()
        with DEADLINE.held_back():
            outcome = left_free(suite, outcome)
            record.stage(name, outcome, time.monotonic() - start, {**(watch.seen() or {}), "after": left_over(suite, name)})
            record.running = None
    return outcome


def left_free(suite, outcome):
    """What came of a stage, with nothing of it left for the next one to begin beside, if there is to be one."""
    if not suite.host or DEADLINE.given_up:
        return outcome
    try:
        host.wait_until_free(DEADLINE.patience(LEASES_LEFT_S))
        return outcome
    except GPOOL_ERRORS as error:
        if DEADLINE.given_up:
            # It had no time to see them go.
            return outcome
        suite.record.note(f"after the stage: {type(error).__name__}: {error}")
        return "failed"


def left_over(suite, name):
    """Who is on the device when a stage has ended; what is more than there was before the first one is told, whoever's."""
    try:
        return waited_for(suite, name)
    except OSError as error:  # A device that has gone must not take the results along.
        suite.record.note(f"after {name} nobody tells who is on the device: {error}")
        return None


def waited_for(suite, name):
    most, deadline = suite.before["used_bytes"] + LEFT_BYTES, time.monotonic() + LEFT_S
    while (found := suite.nvml.occupancy())["used_bytes"] > most and not DEADLINE.given_up and time.monotonic() < deadline:
        time.sleep(0.1)
    if found["used_bytes"] > most and not DEADLINE.given_up:
        more = (found["used_bytes"] - suite.before["used_bytes"]) >> 20
        suite.record.note(f"after {name} {more} MiB more are used of the device than before all stages: {found['processes']}")
    return found


def look_around(suite):
    """Who is on the device before the first stage: what others compute there moves every figure."""
    suite.before = suite.record.data["about"]["before"] = suite.nvml.occupancy()
    if suite.before["processes"]:
        suite.record.note(f"others use this GPU: {suite.before}; no figure of this run is of gpool alone")


def unfit():
    """Why nothing can be measured on this GPU, or None."""
    nvml = open_nvml()
    if nvml.is_divided():
        return "the GPU is divided (MIG is on), and what is measured here is of a whole one"
    if (mode := nvml.compute_mode()) not in (None, "default"):
        return f"the GPU's compute mode is {mode}, and what is measured here are several processes at a time"
    return None


def pin():
    """The UUID of the GPU that is measured, to which all are held where there are several; None where there is one."""
    nvml = open_nvml()
    if nvml.count() < 2:
        return None
    os.environ["CUDA_VISIBLE_DEVICES"] = nvml.uuid()
    return nvml.uuid()


def about_gpool(suite):
    """Which build of gpool is measured. That of a supervisor that ran already need not be the bundle's."""
    about, own = suite.record.data["about"], suite.host
    if own is None:
        return
    try:
        about["builds"] = own.builds()
    except GPOOL_ERRORS as error:
        about["commit"] = f"unknown: {error}"
        return
    if not own.is_own and about["builds"]["supervisor"] != about["builds"]["supervisor_of_the_bundle"]:
        about["commit"] = f"unknown: a supervisor that ran already, not the bundle's of {about['commit']}"
        suite.record.note(f"the commit is {about['commit']}")
    suite.record.write()


if __name__ == "__main__":
    sys.exit(main())
