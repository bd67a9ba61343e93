"""Starting workers, plainly or under a share, and speaking with them."""

import json
import os
import select
import subprocess
import sys
import time

from .worker import now_ns, sleep_until

SUITE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Where the simulated GPU has its libraries.
SIMULATED_LIBRARIES = "/run/gpool-simgpu/lib"
# Until a worker computes: importing PyTorch and making a context take most of it.
START_PATIENCE_S = 90


class TenantError(Exception):
    """A tenant that did not do what it was told."""


def plain_env():
    """What a program without a share needs to find the driver. A simulated one is in no loader's directory."""
    if not os.path.isdir(SIMULATED_LIBRARIES):
        return {}
    return {"LD_LIBRARY_PATH": SIMULATED_LIBRARIES}


class Tenant:
    """A worker process. `share` is None for a plain one, else options of `gpool run`."""

    def __init__(self, name, share=None, env=None):
        self.name, self.share = name, share
        command = [sys.executable, "-m", "suite.worker"]
        if share is None:
            env = {**plain_env(), **(env or {})}
        else:
            command = ["gpool", "run", *share, "--", *command]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
                                        cwd=SUITE, env={**os.environ, **(env or {})})
        self.rest = b""

    @property
    def lease(self):
        """What `gpool` calls it: its id begins with the pid of `gpool run`."""
        return f"run-{self.process.pid}"

    def tell(self, command, **values):
        self.process.stdin.write(json.dumps({"command": command, **values}).encode() + b"\n")

    def hear(self, patience_s):
        """The answer to the oldest command that has none yet."""
        deadline = time.monotonic() + patience_s
        while b"\n" not in self.rest:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise TenantError(f"{self.name} says nothing for {patience_s:.0f} s")
            part = self.process.stdout.read(65536)
            if not part:
                raise TenantError(f"{self.name} ended with {self.process.wait()}")
            self.rest += part
        line, self.rest = self.rest.split(b"\n", 1)
        answer = json.loads(line)
        if "error" in answer:
            raise TenantError(f"{self.name}: {answer['error']}")
        return answer

    def ask(self, command, patience_s=START_PATIENCE_S, **values):
        self.tell(command, **values)
        return self.hear(patience_s)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        """Ends it as its input ends; kills it if it stays."""
        if self.process.poll() is None:
            self.process.stdin.close()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()
        self.process.stdout.close()


class Tenants:
    """Tenants that end together, whatever happens."""

    def __init__(self):
        self.all = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for tenant in self.all:
            tenant.end()

    def start(self, name, share=None, env=None):
        self.all.append(Tenant(name, share, env))
        return self.all[-1]


def prepare(tenants_and_works):
    """Lets all load at once; answers what each said."""
    for tenant, work in tenants_and_works:
        tenant.tell("prepare", work=work)
    return [tenant.hear(START_PATIENCE_S) for tenant, _ in tenants_and_works]


def run_together(tenants_and_works, seconds, depth=4, lead_ms=50):
    """Runs all at the same time; answers what each said, in their order."""
    begin = now_ns() + lead_ms * 1_000_000
    end = begin + int(seconds * 1e9)
    for tenant, work in tenants_and_works:
        tenant.tell("run", work=work, begin_ns=begin, end_ns=end, depth=depth)
    return [tenant.hear(seconds + 30) for tenant, _ in tenants_and_works]


def rate(answer, skip_buckets=2):
    """Steps a second of a run, its beginning left out."""
    counts = answer["counts"][skip_buckets:]
    return sum(counts) / (len(counts) / 10) if counts else 0.0


def solo_rates(tenants_and_works, seconds):
    """What each does with the GPU to itself, one after the other."""
    return [rate(run_together([pair], seconds)[0]) for pair in tenants_and_works]


__all__ = ["Tenant", "TenantError", "Tenants", "now_ns", "prepare", "rate", "run_together", "sleep_until", "solo_rates"]
