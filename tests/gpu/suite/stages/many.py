"""Seven and ten small inference tenants on one GPU: beside one after another, and beside MPS."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile

from ..record import median
from ..tenant import TenantError, Tenants, beside_whole, prepare, rate, run_together, start_plain

SECONDS = 48
# How long each measurement of what one does alone takes; there are two for each set of tenants.
WHOLE_S = 0.7
# What folders of the suite's own MPS daemons are called.
FOLDER = "gpool-suite-mps-"


def run(suite):
    # Small: about a quarter of the multiprocessors of a large GPU.
    work = suite.choose("fused:32:4000", "fused:32:4000", "spin:300000")
    record, seconds = suite.record, 2 if suite.simulated else suite.seconds(2.5)
    with Tenants() as tenants:
        # What one does after another, without gpool and without MPS, is what all are measured against.
        alone = start_plain(suite, tenants, [work])
        for count in (7, 10):
            share = f"{int(1000 / count) / 1000:.3f}"
            shared = together(suite, [["--fraction", share, "--memory", "1GiB"]] * count, None, work, seconds, alone)
            plain = together(suite, [None] * count, None, work, seconds, alone)
            record.figure(f"many.{count}.throughput", shared["sum"], "ratio", plain["sum"], ">= 0.98", shared["detail"])
            tails(record, f"many.{count}.", shared, plain)
            try:
                beside_mps(suite, count, work, seconds, plain, alone)
            except (OSError, subprocess.SubprocessError, TenantError) as error:
                # Where nobody serves by MPS, ours still count.
                record.note(f"mps: failed, {error}")


def beside_mps(suite, count, work, seconds, plain, alone):
    with mps(suite) as env:
        if env:
            served = together(suite, [None] * count, env, work, seconds, alone)
            name = f"many.{count}.mps_"
            suite.record.figure(f"{name}throughput", served["sum"], "ratio", plain["sum"], None, served["detail"])
            tails(suite.record, name, served, plain)


def together(suite, shares, env, work, seconds, alone):
    """All at once; their rates over that of `alone`, and the 99th percentile of a step of each. Who ended no two steps has
    waited for ever."""
    with Tenants() as tenants:
        all_ = [(tenants.start(f"t{index}", share, env), work) for index, share in enumerate(shares)]
        prepare(all_)
        answers, whole = beside_whole(suite, alone, work, lambda: run_together(all_, seconds), WHOLE_S)
        rates = [rate(answer, 5) for answer in answers]
        value, detail = whole.ratio(sum(rates))
        return {"sum": value, "detail": {**detail, "rates": [its / whole.rate for its in rates]},
                "p99": [answer["gaps_us"].get("p99", float("inf")) for answer in answers]}


def tails(record, beginning, ours, control):
    """The median over the tenants, and the worst of them, which the median hides."""
    for name, of_all in (("p99", median), ("p99_worst", max)):
        record.figure(f"{beginning}{name}", of_all(ours["p99"]), "us", of_all(control["p99"]), None, {"each": ours["p99"]})


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
        subprocess.run([control, "-d"], env=whole, check=True, timeout=20)
        try:
            yield env
        finally:
            try:
                subprocess.run([control], input=b"quit\n", env=whole, timeout=30, check=False)
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
