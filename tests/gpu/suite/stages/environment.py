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

from .. import container
from ..elf import exported_functions
from ..host import gpool
from ..tenant import SUITE, TenantError, plain_env

SECONDS = 140
# How long a program may take, and what is left for what comes after them.
PROGRAM_S, AFTER_S = 80, 40
# Programs that run at the same time, each with its share: results are compared here, not times.
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
    wrong = [said for look in (facts, exports, programs, static_runtime, in_a_container) for said in looked(suite, look)]
    if wrong:
        raise TenantError("; ".join(wrong))


def looked(suite, look):
    """What is wrong by one look; one that breaks off is."""
    try:
        return look(suite) or []
    except Exception as error:  # The other looks still count.
        said = f"{look.__name__} breaks off, {type(error).__name__}: {error}"
        suite.record.note(said)
        return [said]


def programs(suite):
    """Each program plainly and under a share; those that differ. The last ones are left out when time is short."""
    end = time.monotonic() + min(SECONDS, suite.left()) - AFTER_S

    def outcome(program):
        left = end - time.monotonic()
        return compare(program, min(PROGRAM_S, left)) if left > 10 else "skipped: no time left"

    wrong, names = [], SIMULATED if suite.simulated else PROGRAMS
    pool = concurrent.futures.ThreadPoolExecutor(AT_ONCE)
    try:
        for program, said in zip(names, pool.map(outcome, names)):
            suite.record.figure(f"environment.{program}", said, "")
            if said.startswith("differs"):
                wrong.append(f"{program} {said}")
    finally:
        # What has not begun does not when the stage is given up; what runs is ended by `run_it`.
        STOPPED.set()
        pool.shutdown(cancel_futures=True)
        STOPPED.clear()
    return wrong


def in_a_container(suite):
    """The first program again, in a container that gpool-runtime and runc make."""
    annotations = {"gpool.io/fraction": "0.5", "gpool.io/memory": "40%"}
    try:
        ran = container.run([sys.executable, "-m", "suite.programs", "driver"], SUITE, annotations)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", b"") or b""
        suite.record.note(f"container: not possible here: {error} {said!r}")
        return
    outcome = "ran" if ran.returncode == 0 else f"status {ran.returncode}: {ran.stderr.strip()[-300:]}"
    suite.record.figure("environment.container", outcome, "")


def facts(suite):
    about = suite.record.data["about"]
    about["gpus"] = json.loads(gpool("gpu", "ls", "--format", "json"))
    doctor = subprocess.run(["gpool", "doctor", "--format", "json"], capture_output=True, text=True, timeout=60)
    about["doctor"] = json.loads(doctor.stdout) if doctor.stdout.startswith(("[", "{")) else doctor.stderr
    suite.record.note(f"gpool doctor ends with {doctor.returncode}")
    smi = shutil.which("nvidia-smi")
    if smi:
        for what, command in [("plain", [smi]), ("shared", [*SHARE, smi])]:
            said = subprocess.run(command, capture_output=True, text=True, timeout=60)
            about[f"nvidia_smi_{what}"] = said.stdout or said.stderr


# Asks the loader for each name, as a program that links the library does.
LOOK_UP = """
import ctypes, json, sys
library, names = ctypes.CDLL("libcuda.so.1"), json.load(open(sys.argv[1]))
print(json.dumps([name for name in names if not hasattr(library, name)]))
"""


def exports(suite):
    """Every function that the driver exports must be found in the shim."""
    said = subprocess.run([*SHARE, "sh", "-c", "cat /dev/gpool/real/libcuda.so.1"], capture_output=True, timeout=60)
    names = exported_functions(said.stdout)
    if not names:
        raise TenantError(f"the driver's own library exports nothing: {said.stderr[-300:]!r}")
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(names, file)
        file.flush()
        said = subprocess.run([*SHARE, sys.executable, "-c", LOOK_UP, file.name], capture_output=True, text=True, timeout=60)
    if said.returncode != 0:
        raise TenantError(f"the names cannot be looked up: {said.stderr[-300:]}")
    missing = json.loads(said.stdout)
    suite.record.figure("environment.exports", len(names), "names", detail={"missing": missing})
    suite.record.figure("environment.exports_missing", len(missing), "names", aim="<= 0")


def compare(program, patience_s):
    """Runs one of ../programs.py plainly and under a share: the same, or why not."""
    end = time.monotonic() + patience_s

    def run_it(command):
        env = {**os.environ, **({} if command else plain_env())}
        command = [*command, sys.executable, "-m", "suite.programs", program]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=SUITE, env=env)
        try:
            while True:
                try:
                    out, err = process.communicate(timeout=0.5)
                    return subprocess.CompletedProcess(command, process.returncode, out, err)
                except subprocess.TimeoutExpired:
                    if STOPPED.is_set() or time.monotonic() > end:
                        raise
        finally:
            process.kill()
            process.wait()

    said = {}
    for who, command in [("plain", []), ("shared", SHARE)]:
        try:
            ran = run_it(command)
        except subprocess.TimeoutExpired:
            return f"differs: {who} does not end" if who == "shared" else "skipped: the plain one does not end"
        if ran.returncode == 77:
            return f"skipped: {ran.stdout.strip()}"
        said[who] = ran.stdout if ran.returncode == 0 else f"status {ran.returncode}: {ran.stderr.strip()[-300:]}"
    if said["plain"].startswith("status"):
        return f"skipped: fails without gpool too, {said['plain']}"
    if said["plain"] == said["shared"]:
        return "same"
    # One that chooses its kernels by measuring them computes otherwise each time.
    try:
        again = run_it([]).stdout
    except subprocess.TimeoutExpired:
        again = said["plain"]
    if again != said["plain"] and not said["shared"].startswith("status"):
        return "ran; not the same twice without gpool either"
    return f"differs: {said['plain']!r}, {said['shared']!r}"


STATIC = """
#include <cstdio>
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
}
"""


def static_runtime(suite):
    """A program with the CUDA runtime linked in, which finds the driver by itself."""
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if not nvcc or suite.simulated:
        suite.record.note("static cudart: skipped, " + ("the GPU is simulated" if suite.simulated else "no nvcc here"))
        return
    with tempfile.TemporaryDirectory(prefix="gpool-static-") as folder:
        source, program = os.path.join(folder, "axpy.cu"), os.path.join(folder, "axpy")
        with open(source, "w") as file:
            file.write(STATIC)
        subprocess.run([nvcc, "-cudart", "static", "-o", program, source], check=True, capture_output=True, timeout=60)
        said = [subprocess.run([*command, program], capture_output=True, text=True, timeout=30).stdout
                for command in ([], SHARE)]
    suite.record.figure("environment.cudart_static", "same" if said[0] and said[0] == said[1] else f"differs: {said}", "")
