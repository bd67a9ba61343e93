"""Seven and ten small inference tenants on one GPU: beside one after another, and beside MPS."""

import collections
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile

from ..deadline import DEADLINE
from ..host import handoffs, lost_by_handoffs
from ..record import interval_of, median, percentile
from ..tenant import (TenantError, Tenants, beside_whole, hear_all, now_ns, prepare, rate, run_together, solo_rates,
                      start_plain)

SECONDS = 70
# How long each measurement of what one does alone takes; there are two for each set of tenants.
WHOLE_S = 0.7
# A request keeps a GPU that it has to itself busy for so long; how much of the whole GPU's time all tenants' requests ask for.
REQUEST_MS, LOAD = 2, 0.6
# How long the requests come: in that time as many to all tenants together as a 99th percentile needs, with some to spare.
REQUESTS_S = 3

# How many tenants there are in the end.
MOST = 10

# How many steps a request has, how many come in a second to all tenants together, and for how long.
Requests = collections.namedtuple("Requests", "steps rate seconds")

# What folders of the suite's own MPS daemons are called, and how long one may take to end that was told to.
FOLDER, QUIT_S = "gpool-suite-mps-", 30


def run(suite):
    # Small: about a quarter of the multiprocessors of a large GPU.
    work = suite.choose("fused:32:4000", "fused:32:4000", "spin:300000")
    record, seconds = suite.record, 2 if suite.simulated else suite.seconds(2.5)
    with Tenants() as tenants:
        # What one does after another, without gpool and without MPS, is what all are measured against.
        alone = start_plain(suite, tenants, [work])
        requests = requests_for(suite, solo_rates([(alone, work)], 1)[0])
        # One that answers as many as all tenants get together: what they wait for is each other alone.
        request_times(record, "many.1.", served([(alone, work)], requests, MOST), [])
        for count in (7, MOST):
            share = f"{int(1000 / count) / 1000:.3f}"
            measure = lambda shares, env: together(suite, shares, env, work, seconds, alone, requests)
            shared = measure([["--fraction", share, "--memory", "1GiB"]] * count, None)
            plain = measure([None] * count, None)
            record.figure(f"many.{count}.throughput", shared["sum"], "ratio", plain["sum"], ">= 0.98", shared["detail"])
            tails(record, f"many.{count}.", shared, plain)
            try:
                beside_mps(suite, f"many.{count}.mps_", lambda env: measure([None] * count, env), plain)
            except (OSError, subprocess.SubprocessError, TenantError) as error:
                # Where nobody serves by MPS, ours still count.
                record.note(f"mps: failed, {error}")


def requests_for(suite, rate_alone):
    """Of a work that is done so many times a second by who has the GPU alone."""
    steps = max(1, round(REQUEST_MS * rate_alone / 1e3))
    return Requests(steps, LOAD * rate_alone / steps, 2 if suite.simulated else suite.seconds(REQUESTS_S))


def beside_mps(suite, name, measure, plain):
    with mps(suite) as env:
        if env:
            clients = measure(env)
            suite.record.figure(f"{name}throughput", clients["sum"], "ratio", plain["sum"], None, clients["detail"])
            tails(suite.record, name, clients, plain)


def together(suite, shares, env, work, seconds, alone, requests):
    """All at once; their rates over that of `alone`, and the longest time between two steps of each: of steps that are far
    shorter than a turn, one in a hundred says nothing of the wait for it. Who ended no two steps has waited for ever. Then requests of all, and the milliseconds of each from its arrival to its end."""
    with Tenants() as tenants:
        all_ = [(tenants.start(f"t{index}", share, env), work) for index, share in enumerate(shares)]
        prepare(all_)
        before = handoffs() if all(shares) else None
        answers, whole = beside_whole(suite, alone, work, lambda: run_together(all_, seconds), WHOLE_S)
        rates = [rate(answer, 5) for answer in answers]
        value, detail = whole.ratio(sum(rates))
        detail = {**detail, **(lost_by_handoffs(before, handoffs(), value, seconds) if before else {})}
        return {"sum": value, "detail": {**detail, "rates": [its / whole.rate for its in rates]},
                "longest_ms": [answer["gaps_us"].get("most", float("inf")) / 1e3 for answer in answers],
                "requests": served(all_, requests)}


def served(tenants_and_works, requests, streams=None):
    """What each request took, by tenant; they come to each at other moments, and at the same ones to whoever is compared. One
    tenant that stands for as many as `streams` gets those of all of them."""
    count = streams or len(tenants_and_works)
    begin = now_ns() + 50_000_000
    end = begin + int(requests.seconds * 1e9)
    for seed, (tenant, work) in enumerate(tenants_and_works):
        seeds = list(range(count)) if streams else [seed]
        tenant.tell("requests", work=work, begin_ns=begin, end_ns=end, rate=requests.rate / count, seeds=seeds,
                    steps=requests.steps)
    answers = hear_all([tenant for tenant, _ in tenants_and_works], requests.seconds + 30)
    return [answer["milliseconds"] for answer in answers]


def tails(record, beginning, ours, control):
    """Of steps the longest wait, in the middle of the tenants, and the longest of all; and of requests, in which there
    is what each has waited since it came."""
    for name, of_all in (("longest", median), ("longest_of_all", max)):
        mine, others = ours["longest_ms"], control["longest_ms"]
        record.figure(f"{beginning}{name}", of_all(mine), "ms", of_all(others), None, {"each": mine})
    request_times(record, beginning, ours["requests"], control["requests"])


def request_times(record, beginning, ours, control):
    """Of the requests of all tenants as one."""
    mine, others = sum(ours, []), sum(control, [])
    for name, part in (("p50", 0.5), ("p99", 0.99)):
        at = lambda times: percentile(times, part)
        detail = {"requests": len(mine), "interval": interval_of(at, mine), "slowest": sorted(mine)[-12:]}
        record.figure(f"{beginning}request_{name}", at(mine), "ms", at(others) if others else None, None, detail)


@contextlib.contextmanager
def mps(suite):
    """A private MPS daemon in the device's default compute mode; the environment of its clients, or None."""
    control = shutil.which("nvidia-cuda-mps-control")
    if suite.simulated or not control:
        suite.record.note("mps: skipped, " + ("the GPU is simulated" if suite.simulated else "no nvidia-cuda-mps-control here"))
        yield None
        return
    end_leftovers()
    with tempfile.TemporaryDirectory(prefix=FOLDER) as folder:
        env = {"CUDA_MPS_PIPE_DIRECTORY": os.path.join(folder, "pipe"), "CUDA_MPS_LOG_DIRECTORY": os.path.join(folder, "log")}
        for place in env.values():
            os.makedirs(place)
        whole = {**os.environ, **env}
        try:
            subprocess.run([control, "-d"], env=whole, check=True, timeout=20)
            yield env
        finally:
            try:
                subprocess.run([control], input=b"quit\n", env=whole, timeout=DEADLINE.patience(QUIT_S), check=False)
            finally:
                end_leftovers()


def end_leftovers():
    """Ends daemons and servers of ours that are still there, of a run that was killed as well: their folder's name is in
    their environment."""
    mark = f"CUDA_MPS_PIPE_DIRECTORY={os.path.join(tempfile.gettempdir(), FOLDER)}".encode()
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{int(entry)}/environ", "rb") as file:
                is_ours = any(line.startswith(mark) for line in file.read().split(b"\0"))
            with open(f"/proc/{int(entry)}/comm") as file:
                if is_ours and file.read().startswith("nvidia-cuda-mps"):
                    os.kill(int(entry), signal.SIGKILL)
        except (ValueError, OSError):
            continue
