"""The machine, gpool's own look at it, every export through the shims, and other people's programs bit by bit."""

import concurrent.futures
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time

from .. import container, libraries
from ..comparison import Comparison
from ..deadline import DEADLINE
from ..exports import look as look_for_exports
from ..host import gpool
from ..sections import Sections
from ..tenant import SUITE, Tenants, plain_env

SECONDS = 90
# How long a program may take, and all of them together; what is left of the time for what comes after them.
PROGRAM_S, PROGRAMS_S, AFTER_S = 75, 90, 40
# Programs that run at the same time, each plainly and with its share: results are compared here, not times.
AT_ONCE = 5
SHARE = ["gpool", "run", "--fraction", "0.15", "--memory", "15%", "--"]
# What matters most first: time may end before they do.
PROGRAMS = ["driver", "torch", "graph", "triton", "cudart", "processes", "compile", "cupy", "numba", "jax"]
# The stage is given up: programs that run are ended.
STOPPED = threading.Event()
# What is run of them where the GPU is simulated: kernels compute nothing there.
SIMULATED = ["driver"]


def run(suite):
    """Everything is looked at, whatever was wrong before it; then what was wrong fails the stage."""
    sections = Sections(suite.record)
    for look in (facts, exports, programs, static_runtime, in_a_container):
        with sections.one(look.__name__):
            sections.wrong += look(suite) or []
    sections.end()


def programs(suite):
    """Each program plainly and under a share; those that differ. The last ones are left out when time is short."""
    end = time.monotonic() + min(PROGRAMS_S, DEADLINE.left() - AFTER_S)
    comparison = Comparison(SHARE, suite.shims(), STOPPED, PROGRAM_S, end)

    def outcome(program):
        return comparison.outcome(program) if end - time.monotonic() > 10 else "skipped: no time left"

    wrong, names = [], SIMULATED if suite.simulated else PROGRAMS
    pool = concurrent.futures.ThreadPoolExecutor(AT_ONCE)
    try:
        for program, said in zip(names, pool.map(outcome, names)):
            suite.record.figure(f"environment.{program}", said, "")
            if said.startswith("differs"):
                wrong.append(f"{program} {said}")
    finally:
        # What has not begun does not when the stage is given up; what runs is ended by its comparison.
        STOPPED.set()
        pool.shutdown(cancel_futures=True)
        STOPPED.clear()
    return wrong


def in_a_container(suite):
    """The first program again, in a container that gpool-runtime and runc make: it must print what the plain one does,
    and have the shim. Answers what is wrong. Where no container can be made, the figure says why."""
    if why := without_runc(suite):
        suite.record.figure("environment.container", f"skipped: {why}", "")
        return []
    annotations = {"gpool.io/fraction": "0.5", "gpool.io/memory": "40%"}
    command = [sys.executable, "-m", "suite.programs", "driver"]
    try:
        ran = container.run(command, SUITE, annotations)
    except subprocess.TimeoutExpired as error:
        outcome = f"differs: it does not end within {error.timeout:.0f} s"
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", b"") or b""
        outcome = f"skipped: no container can be made here: {error} {said!r}"
        suite.record.figure("environment.container", outcome, "")
        return []
    else:
        plain = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=SUITE, env={**os.environ, **plain_env()})
        outcome = contained(suite, ran, plain)
    suite.record.figure("environment.container", outcome, "")
    return [] if outcome == "same" else [f"container: {outcome}"]


def without_runc(suite):
    """Why neither runc nor crun, which takes its place, can be started here, or None."""
    program = shutil.which("runc") or shutil.which("crun")
    if not program:
        has_one = os.path.exists(os.path.join(suite.options.bundle, "runc", "runc"))
        return "there is no runc on this machine" + ("" if has_one else ", and none in the bundle")
    try:
        ran = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError) as error:
        return f"{program} cannot be started here: {error}"
    # The bundle's one wants a C library as new as that of the machine that it is from.
    return f"{program} cannot be started here: {ran.stderr.strip()[-300:]}" if ran.returncode != 0 else None


def contained(suite, ran, plain):
    """What came of the one in the container, beside the plain one."""
    if ran.returncode != 0:
        return f"status {ran.returncode}: {ran.stderr.strip()[-300:]}"
    if wrong := libraries.wrong(libraries.told(ran.stderr), True, suite.shims()):
        return f"differs: {wrong}"
    return "same" if ran.stdout == plain.stdout else f"differs: {plain.stdout!r}, {ran.stdout!r}"


def facts(suite):
    about = suite.record.data["about"]
    about["gpus"] = json.loads(gpool("gpu", "ls", "--format", "json"))
    # Shares are of NVML's total less this; what the driver itself calls the total stands beside it.
    with Tenants() as tenants:
        total = tenants.start("total").ask("memory")["total"]
    about["memory"] = {"nvml_total": suite.nvml.total_bytes(), "nvml_reserved": suite.nvml.reserved_bytes(), "cuda_total": total}
    suite.record.note(f"memory: {about['memory']}")
    doctor = subprocess.run(["gpool", "doctor", "--format", "json"], capture_output=True, text=True, timeout=60)
    about["doctor"] = json.loads(doctor.stdout) if doctor.stdout.startswith(("[", "{")) else doctor.stderr
    suite.record.note(f"gpool doctor ends with {doctor.returncode}")
    smi = shutil.which("nvidia-smi")
    if smi:
        for what, command in [("plain", [smi]), ("shared", [*SHARE, smi])]:
            said = subprocess.run(command, capture_output=True, text=True, timeout=60)
            about[f"nvidia_smi_{what}"] = said.stdout or said.stderr


def exports(suite):
    return look_for_exports(suite, SHARE)


STATIC = """
#include <cstdio>
#include <cstring>
__global__ void axpy(int n, float a, const float *x, float *y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += a * x[i];
}
int main() {
    const int n = 1 << 20;
    float *x, *y;
    if (cudaMallocManaged(&x, n * 4) || cudaMallocManaged(&y, n * 4)) return 2;
    for (int i = 0; i < n; i++) { x[i] = i % 97; y[i] = i % 89; }
    axpy<<<(n + 255) / 256, 256>>>(n, 1.5f, x, y);
    if (cudaDeviceSynchronize()) return 3;
    double sum = 0;
    for (int i = 0; i < n; i++) sum += y[i];
    printf("%.1f\\n", sum);
    // By which driver.
    char line[4096];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        if (strstr(line, "libcuda.so")) fputs(line, stderr);
}
"""


def static_runtime(suite):
    """A program with the CUDA runtime linked in, which finds the driver by itself."""
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if not nvcc or suite.simulated:
        suite.record.note("static cudart: skipped, " + ("the GPU is simulated" if suite.simulated else "no nvcc here"))
        return []
    with tempfile.TemporaryDirectory(prefix="gpool-static-") as folder:
        source, program = os.path.join(folder, "axpy.cu"), os.path.join(folder, "axpy")
        with open(source, "w") as file:
            file.write(STATIC)
        subprocess.run([nvcc, "-cudart", "static", "-o", program, source], check=True, capture_output=True, timeout=60)
        plain, shared = [subprocess.run([*command, program], capture_output=True, text=True, timeout=30, env=env)
                         for command, env in (([], {**os.environ, **plain_env()}), (SHARE, None))]
    has_shims = [libraries.BEHIND_A_SHIM in ran.stderr for ran in (plain, shared)]
    if plain.returncode != 0:
        outcome = f"skipped: fails without gpool too, status {plain.returncode}: {plain.stderr[-300:]}"
    elif has_shims != [False, True]:
        outcome = f"differs: {'the plain one has a shim' if has_shims[0] else 'the shared one has no shim'}"
    else:
        said = [(ran.returncode, ran.stdout) for ran in (plain, shared)]
        outcome = "same" if said[0] == said[1] else f"differs: {said}"
    suite.record.figure("environment.cudart_static", outcome, "")
    return [f"cudart_static {outcome}"] if outcome.startswith("differs") else []
