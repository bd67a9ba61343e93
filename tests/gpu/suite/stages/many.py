"""Seven and ten small inference tenants on one GPU: beside one after another, and beside MPS."""

import contextlib
import os
import shutil
import subprocess
import tempfile

from ..record import median
from ..tenant import TenantError, Tenants, prepare, rate, run_together, solo_rates

SECONDS = 80


def run(suite):
    # Small: about a quarter of the multiprocessors of a large GPU.
    work = suite.choose("fused:32:4000", "fused:32:4000", "spin:300000")
    record, seconds = suite.record, 2 if suite.simulated else suite.seconds(4)
    for count in (7, 10):
        share = f"{int(1000 / count) / 1000:.3f}"
        shared = together([["--fraction", share, "--memory", "1GiB"]] * count, None, work, seconds)
        plain = together([None] * count, None, work, seconds)
        record.figure(f"many.{count}.throughput", shared["sum"], "ratio", plain["sum"], ">= 0.98",
                      {"rates": shared["rates"]})
        record.figure(f"many.{count}.p99", shared["p99"], "us", plain["p99"])
        try:
            beside_mps(suite, count, work, seconds, plain)
        except (OSError, subprocess.SubprocessError, TenantError) as error:
            # Where nobody serves by MPS, ours still count.
            record.note(f"mps: failed, {error}")


def beside_mps(suite, count, work, seconds, plain):
    with mps(suite) as env:
        if env:
            served = together([None] * count, env, work, seconds)
            suite.record.figure(f"many.{count}.mps_throughput", served["sum"], "ratio", plain["sum"])
            suite.record.figure(f"many.{count}.mps_p99", served["p99"], "us", plain["p99"])


def together(shares, env, work, seconds):
    """All at once; their rates over one's rate alone, and the median of their 99th percentiles of a step."""
    with Tenants() as tenants:
        all_ = [(tenants.start(f"t{index}", share, env), work) for index, share in enumerate(shares)]
        prepare(all_)
        alone = solo_rates(all_[:1], 1.5)[0]
        answers = run_together(all_, seconds)
        rates = [rate(answer, 5) / alone for answer in answers]
        return {"sum": sum(rates), "rates": rates, "p99": median([answer["gaps_us"].get("p99", 0) for answer in answers])}


@contextlib.contextmanager
def mps(suite):
    """A private MPS daemon in the device's default compute mode; the environment of its clients, or None."""
    control = shutil.which("nvidia-cuda-mps-control")
    if suite.simulated or not control:
        suite.record.note("mps: skipped, " + ("the GPU is simulated" if suite.simulated else "no nvidia-cuda-mps-control here"))
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="gpool-mps-") as folder:
        env = {"CUDA_MPS_PIPE_DIRECTORY": os.path.join(folder, "pipe"), "CUDA_MPS_LOG_DIRECTORY": os.path.join(folder, "log")}
        for place in env.values():
            os.makedirs(place)
        whole = {**os.environ, **env}
        subprocess.run([control, "-d"], env=whole, check=True, timeout=20)
        try:
            yield env
        finally:
            subprocess.run([control], input=b"quit\n", env=whole, timeout=30, check=False)
