"""One of programs.py plainly and under a share, at the same time: what they print must be the same."""

import collections
import concurrent.futures
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from . import libraries
from .deadline import DEADLINE
from .programs import SKIPPED
from .tenant import KILL_PATIENCE_S, SUITE, plain_env

# Where what is compiled is kept: each run compiles for itself, else only the first of all would, which has no share.
CACHES = ["CUDA_CACHE_PATH", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUPY_CACHE_DIR"]


# What came of a run, and the seconds that it took.
Ran = collections.namedtuple("Ran", "returncode stdout stderr seconds")


class Comparison:
    """`share` is the command that gives a program its share, with one of the `shims`; `stopped` is set when all must end;
    nobody has longer than `patience_s`, nor goes on after the moment `end`."""

    def __init__(self, share, shims, stopped, patience_s, end):
        self.share, self.shims, self.stopped, self.patience_s, self.end = share, shims, stopped, patience_s, end

    def outcome(self, program):
        """Same, or why not."""
        is_cut = time.monotonic() + self.patience_s > self.end
        # What they compute is compared, not how long it takes.
        with concurrent.futures.ThreadPoolExecutor(2) as pair:
            plain, shared = pair.map(lambda command: self.said(command, program), ([], self.share))
        if plain is None:
            return "skipped: the plain one does not end"
        if plain.returncode == SKIPPED:
            return f"skipped: {plain.stdout.strip()}"
        if plain.returncode != 0:
            return f"skipped: fails without gpool too, {printed(plain)}"
        if shared is None:
            # Where the plain one needs most of the time, nothing is told by the shared one's needing more.
            is_slow = is_cut or plain.seconds > self.patience_s / 2
            return "skipped: no time left for the shared one" if is_slow else "differs: the shared one does not end"
        if found := self.without_shim(plain, shared):
            return f"differs: {found}"
        if printed(plain) == printed(shared):
            return "same"
        # One that chooses its kernels by measuring them computes otherwise each time.
        again = self.said([], program)
        if again is not None and printed(again) != printed(plain) and shared.returncode == 0:
            return "ran; not the same twice without gpool either"
        return f"differs: {printed(plain)!r}, {printed(shared)!r}"

    def without_shim(self, plain, shared):
        """Why what the two print would say nothing, if one of them has another driver than it is to have."""
        if shared.returncode != 0:
            return None
        pair = [libraries.wrong(libraries.told(plain.stderr), False),
                libraries.wrong(libraries.told(shared.stderr), True, self.shims)]
        return next((f"{who}, {wrong}" for who, wrong in zip(("the plain one", "the shared one"), pair) if wrong), None)

    def said(self, command, program):
        """The Ran of one run, or None if it does not end."""
        folder = tempfile.mkdtemp(prefix="gpool-caches-")
        caches = {name: os.path.join(folder, name.lower()) for name in CACHES}
        env = {**os.environ, **({} if command else plain_env()), **caches, "TORCHINDUCTOR_COMPILE_THREADS": "4"}
        command = [*command, sys.executable, "-m", "suite.programs", program]
        # A session of its own, so that what it starts ends with it.
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=SUITE, env=env,
                                   start_new_session=True)
        begun = time.monotonic()
        last = min(self.end, begun + self.patience_s)
        try:
            while True:
                try:
                    out, err = process.communicate(timeout=0.5)
                    return Ran(process.returncode, out, err, time.monotonic() - begun)
                except subprocess.TimeoutExpired:
                    if self.stopped.is_set() or time.monotonic() > last:
                        return None
        finally:
            remove(process, folder)


def remove(process, folder):
    """Ends a program with all that it has started, and removes its caches; one that does not end is not waited for for
    ever."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    try:
        process.wait(DEADLINE.patience(KILL_PATIENCE_S))
    except subprocess.TimeoutExpired:
        print(f"  a program was killed and is not gone: {process.args[-1]}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)


def printed(ran):
    return ran.stdout if ran.returncode == 0 else f"status {ran.returncode}: {ran.stderr.strip()[-300:]}"
