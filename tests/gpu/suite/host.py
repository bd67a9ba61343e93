"""gpool on this machine for as long as the suite runs: installed where it looks for its files, its supervisor started,
and everything taken away again. A supervisor that runs already is used as it is.
"""

import ctypes
import glob
import json
import os
import platform
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import time

from . import machine
from .deadline import DEADLINE, FILES_S, SUPERVISOR_S
from .libraries import build_id
from .placed import Placed

# Flags of unshare(2) and mount(2).
NEW_MOUNTS, RECURSIVE, PRIVATE, DETACH = 0x00020000, 16384, 1 << 18, 2

# What the supervisor makes.
RUN = "/run/gpool"
SOCKET = f"{RUN}/gpool.sock"
# What is installed, by its place in the bundle. Nothing may be there before: the suite takes away what it has put.
PLACES = {
    "bin/gpool": "/usr/bin/gpool",
    "bin/gpool-runtime": "/usr/bin/gpool-runtime",
    "bin/gpool-supervisor": "/usr/sbin/gpool-supervisor",
    "libexec": "/usr/libexec/gpool",
    "lib": "/usr/lib/gpool",
}
# runc and the one library that it needs besides libc, installed where this machine has none. It cannot be started by the
# bundle's loader, as our programs are where the C library is too old for them: it executes /proc/self/exe again for each
# container, which would be the loader, and the loader would take runc's first argument for a program.
RUNC = {"runc": "/usr/bin/runc", "libseccomp.so.2": "/usr/lib/x86_64-linux-gnu/libseccomp.so.2"}
CONFIGURATION = "/etc/gpool"
# Lists what the suite has installed, so that the next run can remove what one that was killed has left.
MARK = f"{CONFIGURATION}/made-by-gpu-suite"
# Where drivers lie; the loader's own directories come first.
LIBRARY_DIRECTORIES = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib",
                       "/usr/local/cuda/compat"]

# How long the supervisor may take to answer; to end when it is asked to; and to be gone once it was killed.
START_S, KILL_S = 20, 2
STOP_S = SUPERVISOR_S - KILL_S

# How long the supervisor may take to try whether the hardware keeps shares by time slices: up to 40 s until its two
# processes compute, and three tries of some seconds.
TRIAL_S = 60

# What a simulated GPU's driver needs in a container.
SIMULATED_STATE = "/run/gpool-simgpu/state"


# Why something is left out where our programs run by the bundle's loader.
OLD_LIBC = "this machine's C library is older than gpool needs"


class HostError(Exception):
    """gpool cannot be brought up here; the sentence says why."""


class Host:
    """Use it with `with`."""

    def __init__(self, bundle, out, gpu, tries_time_slices):
        """`gpu` is the UUID of the only one that is to be served, None for whatever there is. Time slices are tried only
        for who measures them: that takes seconds, and where it has no result up to TRIAL_S."""
        self.bundle, self.out, self.process, self.placed = bundle, out, None, Placed(MARK)
        self.gpu, self.is_own = gpu, False
        # By two processes that the supervisor makes of its own program.
        self.tries_time_slices = tries_time_slices and not self.has_old_libc
        # What the supervisor said of the first GPU's time slices.
        self.verdict = None
        # What was done or left out because of this machine.
        self.notes = []

    def __enter__(self):
        if answers():
            self._use_running()
            return self
        self.is_own = True
        try:
            self._install()
            self._make_cgroups()
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _use_running(self):
        """A supervisor that runs already. What it has leased, and another GPU than ours, would be in every figure."""
        wait_until_free()
        served = json.loads(gpool("gpu", "ls", "--format", "json"))["gpus"]
        if self.gpu and [its["uuid"] for its in served] != [self.gpu]:
            raise HostError(f"the supervisor that runs here serves other GPUs than {self.gpu} too")
        self.verdict = trial()

    def builds(self):
        """Build ids of what is measured."""
        programs = {"supervisor": f"/proc/{supervisor_pid()}/exe", "gpool": shutil.which("gpool")}
        if self.is_own and self._loader():
            # What runs then is the loader.
            programs = {name: os.path.join(self.bundle, "bin", file) for name, file in
                        (("supervisor", "gpool-supervisor"), ("gpool", "gpool"))}
        shims = glob.glob(f"{PLACES['lib']}/*/libgpool-*.so")
        return {
            "is_own": self.is_own, **{name: build_id(path) for name, path in programs.items()},
            "supervisor_of_the_bundle": build_id(os.path.join(self.bundle, "bin/gpool-supervisor")),
            "shims": {os.path.relpath(path, PLACES["lib"]): build_id(path) for path in sorted(shims)},
        }

    def _stop(self):
        """Asks the supervisor to end, and kills it if it does not. One that stays all the same, in a call of the driver's, is
        waited for no longer than the time is there."""
        if self.process is None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(DEADLINE.patience(STOP_S, KILL_S + FILES_S))
        except subprocess.TimeoutExpired:
            self._kill()

    def _kill(self):
        self.process.kill()
        try:
            self.process.wait(DEADLINE.patience(KILL_S, FILES_S))
        except subprocess.TimeoutExpired:
            print("  the supervisor was killed and is not gone", flush=True)

    def __exit__(self, *_):
        if self.is_own:
            with DEADLINE.held_back():
                self._stop()
                self._take_away()

    def _take_away(self):
        if not os.path.exists(MARK):
            return
        if self.placed.has(RUN):
            unmount_below(RUN)
        self.placed.take_away()
        # Unless somebody has put something there.
        if not os.listdir(CONFIGURATION):
            os.rmdir(CONFIGURATION)

    def _install(self):
        if os.geteuid() != 0:
            raise HostError("gpool run needs root")
        if self.placed.left_by_another():
            self.notes.append("a run before this one was killed; what it had put here is removed")
        self._take_away()
        taken = [place for place in [*PLACES.values(), CONFIGURATION] if os.path.lexists(place)]
        if taken:
            raise HostError(f"{taken[0]} is there already; start that gpool's supervisor, or remove it")
        os.makedirs(CONFIGURATION)
        self.placed.expect(RUN)
        for source, place in PLACES.items():
            if source == "bin/gpool" and self._loader():
                # By the bundle's loader, as the supervisor. Other programs call it by its name.
                program = shlex.join([*self._loader(), os.path.join(self.bundle, source)])
                self.placed.write(place, f'#!/bin/sh\nexec {program} "$@"\n', 0o755)
            else:
                self.placed.copy(os.path.join(self.bundle, source), place)
        for name, place in RUNC.items():
            source = os.path.join(self.bundle, "runc", name)
            if not os.path.lexists(place) and os.path.exists(source):
                self.placed.copy(source, place)
        self.placed.write(os.path.join(CONFIGURATION, "config.toml"), self._configuration())

    def _configuration(self):
        directories, smi = library_directories(), shutil.which("nvidia-smi")
        nvml = [path for d in directories if os.path.exists(path := os.path.join(d, "libnvidia-ml.so.1"))]
        # What the stage `timeslices` measures beside the gate; it changes nothing for anybody else.
        text = "[policy]\ntimeslice = true\ntimeslice_shares = true\n" if self.tries_time_slices else ""
        # Nobody starts a container again here, and who waits for an empty GPU would wait for its place.
        text += "[lease]\nhold_ms = 0\n"
        # For the stage `spill`.
        text += '[spill]\nmemory = "4GiB"\n'
        # The ledger and what is kept for a boot go with what the supervisor makes, so that nothing is left.
        text += f'[paths]\nstate_dir = "{RUN}/state"\n'
        text += f'[ledger]\npath = "{RUN}/ledger.db"\n[audit]\ndirectory = ""\n'
        text += f"[driver]\nlibrary_dirs = {json.dumps(directories)}\n"
        if self.gpu:
            text += f"gpus = {json.dumps([self.gpu])}\n"
        if nvml:
            # By its path where it lies in no directory of the loader's.
            text += f"nvml = {json.dumps(nvml[0])}\n"
        if smi:
            text += f"program_dirs = {json.dumps([os.path.dirname(smi)])}\n"
        if os.path.isdir(SIMULATED_STATE):
            text += f"[[driver.mount]]\nsource = {json.dumps(SIMULATED_STATE)}\n"
        return text

    def _make_cgroups(self):
        """A cgroup for commands to be in, where this machine shows none that can be written to: in a mount namespace of
        the suite's own, so that it goes with the suite, however that ends."""
        table = [line.split() for line in open("/proc/self/mountinfo")]
        groups = [fields for fields in table if fields[fields.index("-") + 1] in ("cgroup", "cgroup2")]
        if any("ro" not in fields[5].split(",") for fields in groups) or not os.path.isdir("/sys/fs"):
            return
        place = "/sys/fs/cgroup" if os.path.isdir("/sys/fs/cgroup") else "/sys/fs"
        libc, said = ctypes.CDLL(None, use_errno=True), []
        for what, call, *words in [
            ("unshare", libc.unshare, NEW_MOUNTS),
            ("private", libc.mount, b"none", b"/", None, RECURSIVE | PRIVATE, None),
            *([("umount", libc.umount2, place.encode(), DETACH)] if groups else []),
            ("cgroup2", libc.mount, b"cgroup2", place.encode(), b"cgroup2", 0, None),
        ]:
            if call(*words) != 0:
                said.append(f"{what}: {os.strerror(ctypes.get_errno())}")
                break
        self.notes.append(f"no cgroup can be written to here; one is mounted for the suite alone ({said or 'done'})")

    def _start(self):
        self._launch()
        if not self.tries_time_slices:
            return
        self.verdict = self._tried()
        if self.verdict and not self.verdict["is_final"]:
            # It would try again a minute later; another supervisor does at once.
            self.notes.append(f"time slices are tried a second time; at first: {self.verdict['told']}")
            self.restart()
            self.verdict = self._tried()
        if self.verdict is None or not self.verdict["kept"]:
            # It would try again later, between two stages or beside a control.
            self.notes.append(f"time slices are not kept here: {self.verdict['told'] if self.verdict else 'the trial does not end'}")
            self.tries_time_slices = False
            self.placed.write(os.path.join(CONFIGURATION, "config.toml"), self._configuration())
            self.restart()

    def _tried(self):
        """What came of the trial: two processes of the supervisor's own keep the GPU busy until then."""
        deadline = time.monotonic() + TRIAL_S
        while (verdict := trial()) is None and time.monotonic() < deadline:
            time.sleep(0.2)
        return verdict

    def restart(self):
        """Another supervisor in place of the suite's own: it knows nothing that the one before has learnt of the GPU, except
        whether that keeps time slices."""
        with DEADLINE.held_back():
            self._stop()
            self._launch()

    def _launch(self):
        log = open(os.path.join(self.out, "supervisor.log"), "a")
        suite = os.getpid()

        def bind():
            # Bound to the suite: it ends with it also if that is killed (PR_SET_PDEATHSIG of prctl(2)), or has been by now.
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)
            if os.getppid() != suite:
                os._exit(1)

        self.process = subprocess.Popen(self._supervisor(), stdout=log, stderr=log, preexec_fn=bind)
        deadline = time.monotonic() + START_S
        while not answers():
            if self.process.poll() is not None or DEADLINE.given_up or time.monotonic() > deadline:
                log.flush()
                with open(log.name) as text:
                    raise HostError(f"the supervisor does not come up: {text.read()[-800:].strip()}")
            time.sleep(0.05)

    def _supervisor(self):
        return [*self._loader(), PLACES["bin/gpool-supervisor"]]

    @property
    def has_old_libc(self):
        """Whether this machine's C library is older than our programs need."""
        return bool(self._loader())

    @property
    def lacks(self):
        """Why what gpool starts another program for cannot be done here, or None: that one is not started by the bundle's loader. So it
        is with suspending and the trial of time slices, for which the supervisor executes /proc/self/exe, and with the test of a GPU."""
        return OLD_LIBC if self.is_own and self.has_old_libc else None

    def _loader(self):
        """The loader that the bundle carries, where this machine's C library is older than our programs need."""
        needed, own = (os.path.join(self.bundle, "GLIBC"), platform.libc_ver()[1])
        needed = open(needed).read().strip() if os.path.exists(needed) else "0"
        number = lambda version: [int(part) for part in version.split(".")]
        if number(own or "0") >= number(needed):
            return []
        libraries = os.path.join(self.bundle, "libc")
        return [os.path.join(libraries, "ld-linux-x86-64.so.2"), "--library-path", libraries]


def unmount_below(folder):
    """Regions of leases that lasted until the supervisor ended stay mounted, and could not be removed."""
    libc = ctypes.CDLL(None)
    for place in reversed([line.split()[4] for line in machine.lines("/proc/self/mountinfo")]):
        if place.startswith(f"{folder}/"):
            libc.umount2(place.encode(), DETACH)


def library_directories():
    """Where the driver's libraries lie: the one that programs get first, wherever that is."""
    found, _ = machine.loaded_libcuda()
    known = [d for d in LIBRARY_DIRECTORIES if os.path.exists(os.path.join(d, "libcuda.so.1"))] or LIBRARY_DIRECTORIES
    first = [os.path.dirname(found)] if found and os.path.exists(os.path.join(os.path.dirname(found), "libcuda.so.1")) else []
    return list(dict.fromkeys([*first, *known]))


def answers():
    """Whether a supervisor listens."""
    with socket.socket(socket.AF_UNIX) as peer:
        return peer.connect_ex(SOCKET) == 0


def supervisor_pid():
    """The process that listens there."""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(SOCKET)
        # struct ucred of unix(7): pid, uid, gid.
        return struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]


def gpool(*words):
    """Runs the command line tool; its output. Raises HostError with what it said."""
    ran = subprocess.run(["gpool", *words], capture_output=True, text=True, timeout=DEADLINE.patience(30))
    if ran.returncode != 0:
        raise HostError(f"gpool {' '.join(words)}: {ran.stderr.strip()}")
    return ran.stdout


def leases():
    return json.loads(gpool("ps", "--format", "json"))["leases"]


def handoffs():
    """How often the supervisor has handed a GPU over so far, how long that took lately, and how long slices are."""
    its = json.loads(gpool("info", "--format", "json"))["supervisor"]
    return {key: its.get(key) for key in ("handoff_count", "handoff_p50_ns", "handoff_p99_ns", "slice_ns")}


def lost_by_handoffs(before, after, throughput, seconds):
    """The hand-offs between two moments, for `seconds` of which all that was delivered is known; and the microseconds that each has
    lost, if all that is missing was lost by them."""
    count = (after["handoff_count"] or 0) - (before["handoff_count"] or 0)
    lost_us = (1 - throughput) * seconds * 1e6 / count if count > 0 else None
    return {"handoffs": {**after, "count": count, "lost_us_each": lost_us}}


def lease(name):
    """That of the container whose id begins with `name`."""
    its = next((its for its in leases() if its["container_id"].startswith(name)), None)
    if its is None:
        raise HostError(f"there is no lease {name}")
    return its


def process_of(name, inside):
    """The process that is number `inside` to itself, in the namespace of the command that has the lease `name`."""
    space = machine.link(f"/proc/{lease(name)['init_pid']}/ns/pid")
    for entry in filter(str.isdigit, os.listdir("/proc")):
        numbers = next((line.split() for line in machine.lines(f"/proc/{entry}/status") if line.startswith("NSpid:")), [])
        if numbers[-1:] == [str(inside)] and machine.link(f"/proc/{entry}/ns/pid") == space:
            return int(entry)
    raise HostError(f"no process of {name} is its number {inside}")


def events():
    return [json.loads(line) for line in gpool("events", "--format", "json").splitlines()]


def trial():
    """What the supervisor says of the first GPU's time slices; None before it has tried them, or where it does not."""
    return json.loads(gpool("gpu", "ls", "--format", "json"))["gpus"][0].get("time_slices")


def wait_until_free(patience_s=15):
    """Waits until no lease is left, whoever's: what is measured next starts on an empty GPU."""
    deadline = time.monotonic() + patience_s
    while left := leases():
        if DEADLINE.given_up or time.monotonic() > deadline:
            raise HostError(f"leases are left: {', '.join(its['container_id'] for its in left)}")
        time.sleep(0.05)
