"""gpool on this machine for as long as the suite runs: installed where it looks for its files, its supervisor started,
and everything taken away again. A supervisor that runs already is used as it is.
"""

import ctypes
import glob
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import time

SOCKET = "/run/gpool/gpool.sock"
# What is installed, by its place in the bundle. Nothing may be there before: the suite takes away what it has put.
PLACES = {
    "bin/gpool": "/usr/bin/gpool",
    "bin/gpool-runtime": "/usr/bin/gpool-runtime",
    "bin/gpool-supervisor": "/usr/sbin/gpool-supervisor",
    "libexec": "/usr/libexec/gpool",
    "lib": "/usr/lib/gpool",
}
CONFIGURATION = "/etc/gpool"
# Where drivers lie; the loader's own directories come first.
LIBRARY_DIRECTORIES = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib",
                       "/usr/local/cuda/compat"]


class HostError(Exception):
    """gpool cannot be brought up here; the sentence says why."""


class Host:
    """Use it with `with`."""

    def __init__(self, bundle, out):
        self.bundle, self.out, self.process, self.installed = bundle, out, None, []

    def __enter__(self):
        if answers():
            self.is_own = False
            return self
        self.is_own = True
        try:
            self._install()
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
        for place in reversed(self.installed):
            shutil.rmtree(place, ignore_errors=True) if os.path.isdir(place) else os.path.exists(place) and os.remove(place)
        self.installed = []

    def _install(self):
        if os.geteuid() != 0:
            raise HostError("gpool run needs root")
        taken = [place for place in [*PLACES.values(), CONFIGURATION] if os.path.lexists(place)]
        if taken:
            raise HostError(f"{taken[0]} is there already; start that gpool's supervisor, or remove it")
        for source, place in PLACES.items():
            os.makedirs(os.path.dirname(place), exist_ok=True)
            self.installed.append(place)
            source = os.path.join(self.bundle, source)
            shutil.copytree(source, place) if os.path.isdir(source) else shutil.copy(source, place)
        self._install_runc()
        self.installed += [CONFIGURATION, "/run/gpool"]
        os.makedirs(CONFIGURATION)
        directories = [d for d in LIBRARY_DIRECTORIES if glob.glob(os.path.join(d, "libcuda.so.1"))] or LIBRARY_DIRECTORIES
        listed = ", ".join(json.dumps(directory) for directory in directories)
        with open(os.path.join(CONFIGURATION, "config.toml"), "w") as file:
            file.write(f"[driver]\nlibrary_dirs = [{listed}]\n")

    def _install_runc(self):
        """runc and the one library that it needs besides libc, where this machine has none."""
        for name, place in [("runc", "/usr/bin/runc"), ("libseccomp.so.2", "/usr/lib/x86_64-linux-gnu/libseccomp.so.2")]:
            source = os.path.join(self.bundle, "runc", name)
            if os.path.exists(source) and not os.path.lexists(place):
                self.installed.append(place)
                shutil.copy(source, place)

    def _start(self):
        log = open(os.path.join(self.out, "supervisor.log"), "w")
        # Bound to the suite: it ends with it also if that is killed (PR_SET_PDEATHSIG of prctl(2)).
        bind = lambda: ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        self.process = subprocess.Popen(self._supervisor(), stdout=log, stderr=log, preexec_fn=bind)
        deadline = time.monotonic() + 20
        while not answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                log.flush()
                with open(log.name) as text:
                    raise HostError(f"the supervisor does not come up: {text.read()[-800:].strip()}")
            time.sleep(0.05)


    def _supervisor(self):
        """The supervisor; by the loader that the bundle carries where this machine's C library is older than it needs."""
        needed, own = (os.path.join(self.bundle, "GLIBC"), platform.libc_ver()[1])
        needed = open(needed).read().strip() if os.path.exists(needed) else "0"
        number = lambda version: [int(part) for part in version.split(".")]
        if number(own or "0") >= number(needed):
            return [PLACES["bin/gpool-supervisor"]]
        libraries = os.path.join(self.bundle, "libc")
        return [os.path.join(libraries, "ld-linux-x86-64.so.2"), "--library-path", libraries, PLACES["bin/gpool-supervisor"]]


def answers():
    """Whether a supervisor listens."""
    with socket.socket(socket.AF_UNIX) as peer:
        return peer.connect_ex(SOCKET) == 0


def gpool(*words):
    """Runs the command line tool; its output. Raises CalledProcessError."""
    return subprocess.run(["gpool", *words], check=True, capture_output=True, text=True, timeout=30).stdout


def leases():
    return json.loads(gpool("ps", "--format", "json"))["leases"]


def events():
    return [json.loads(line) for line in gpool("events", "--format", "json").splitlines()]


def wait_until_free(patience_s=15):
    """Waits until no lease is left: the next stage starts on an empty GPU."""
    deadline = time.monotonic() + patience_s
    while leases():
        if time.monotonic() > deadline:
            raise HostError("a lease of a tenant that has ended is still there")
        time.sleep(0.05)
