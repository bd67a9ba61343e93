"""Starting workers, plainly or under a share, and speaking with them."""

import json
import os
import select
import signal
import subprocess
import sys
import time

from . import libraries
from .deadline import DEADLINE
from .worker import now_ns, sleep_until

SUITE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Where the simulated GPU has its libraries.
SIMULATED_LIBRARIES = "/run/gpool-simgpu/lib"
# Until a worker computes: who imports PyTorch first after a machine's start reads gigabytes.
START_PATIENCE_S = 150
# Until a process is gone whose input has ended, and until one is that was killed: one in a call of the driver's may stay.
END_PATIENCE_S = KILL_PATIENCE_S = 10
# Until one is that was sent SIGTERM, of which a worker ends at once.
TERM_PATIENCE_S = 2


class TenantError(Exception):
    """A tenant that did not do what it was told."""


def plain_env():
    """What a program without a share needs to find the driver. A simulated one is in no loader's directory."""
    if not os.path.isdir(SIMULATED_LIBRARIES):
        return {}
    return {"LD_LIBRARY_PATH": SIMULATED_LIBRARIES}


class Tenant:
    """A worker process. `share` is None for a plain one, else options of `gpool run`; `around` is a command that starts it, and
    `command` another program in its place, which says lines of JSON."""

    def __init__(self, name, share=None, env=None, around=(), command=None):
        self.name, self.share, self.env = name, share, env
        command = [*around, *(command or [sys.executable, "-m", "suite.worker"])]
        if share is None:
            env = {**plain_env(), **(env or {})}
        else:
            command = ["gpool", "run", *share, "--", *command]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
                                        cwd=SUITE, env={**os.environ, **(env or {})})
        self.rest = b""

    @property
    def wants_shim(self):
        """Whether its share is kept by a shim: time slices are set from outside."""
        return self.share is not None and "mode=timeslice" not in self.share

    @property
    def lease(self):
        """What `gpool` calls it: its id begins with the pid of `gpool run`."""
        return f"run-{self.process.pid}"

    @property
    def is_alive(self):
        return self.process.poll() is None

    def tell(self, command, **values):
        try:
            self.process.stdin.write(json.dumps({"command": command, **values}).encode() + b"\n")
        except OSError:
            # It has ended, which `hear` tells. Others that were told as well have answers that must be heard.
            pass

    def hear(self, patience_s):
        """The answer to the oldest command that has none yet."""
        DEADLINE.check()
        deadline = time.monotonic() + patience_s
        while b"\n" not in self.rest:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                # Whatever it says later would be taken for another answer.
                self.kill()
                raise TenantError(f"{self.name} says nothing for {patience_s:.0f} s")
            part = self.process.stdout.read(65536)
            if not part:
                self.wait()
                raise TenantError(f"{self.name} ended with {self.process.returncode}")
            self.rest += part
        line, self.rest = self.rest.split(b"\n", 1)
        try:
            answer = json.loads(line)
        except ValueError:
            self.kill()
            raise TenantError(f"{self.name} says {line[:200]!r}") from None
        if "error" in answer:
            raise TenantError(f"{self.name}: {answer['error']}")
        if "libraries" in answer and (wrong := libraries.wrong(answer["libraries"], self.wants_shim)):
            raise TenantError(f"{self.name}: {wrong}")
        return answer

    def ask(self, command, patience_s=START_PATIENCE_S, **values):
        self.tell(command, **values)
        return self.hear(patience_s)

    def kill(self):
        self.process.kill()
        self.wait()

    def wait(self):
        """Waits until it is gone, as long as makes sense."""
        try:
            self.process.wait(DEADLINE.patience(KILL_PATIENCE_S))
        except subprocess.TimeoutExpired:
            self.tell_that_it_stays()

    def tell_that_it_stays(self):
        print(f"  {self.name} is still there; the suite goes on without it", flush=True)

    def end(self, patience_s=END_PATIENCE_S):
        """Ends it as its input ends; kills it if it stays."""
        if self.is_alive:
            self.process.stdin.close()
            try:
                self.process.wait(patience_s)
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
        with DEADLINE.held_back():
            try:
                self._ask()
            finally:
                self._stop()

    def _ask(self):
        """Ends them as their inputs end, all at once: each has the same seconds. Where something was given up they are in the
        middle of a command, and would be waited for in vain."""
        for tenant in self.all:
            tenant.process.stdin.close()
        deadline = time.monotonic() + END_PATIENCE_S
        while self._alive() and not DEADLINE.given_up and time.monotonic() < deadline:
            time.sleep(0.01)

    def _stop(self):
        """Ends whoever is still there, and waits for nobody before all have their signal: `gpool run` hands SIGTERM on, and
        takes its cgroup away, which one that is killed cannot."""
        for number, patience_s in ((signal.SIGTERM, TERM_PATIENCE_S), (signal.SIGKILL, KILL_PATIENCE_S)):
            for tenant in self._alive():
                tenant.process.send_signal(number)
            deadline = time.monotonic() + DEADLINE.patience(patience_s)
            while self._alive() and time.monotonic() < deadline:
                time.sleep(0.01)
        for tenant in self._alive():
            tenant.tell_that_it_stays()
        for tenant in self.all:
            tenant.process.stdout.close()

    def _alive(self):
        return [tenant for tenant in self.all if tenant.is_alive]

    def start(self, name, share=None, env=None, around=(), command=None):
        DEADLINE.check()
        # One that had begun and was in no list would be left.
        with DEADLINE.held_back():
            self.all.append(Tenant(name, share, env, around, command))
        return self.all[-1]

    def living(self, tenant):
        """That tenant, or where it has ended another one like it."""
        return tenant if tenant.is_alive else self.start(tenant.name, tenant.share, tenant.env)


def prepare(tenants_and_works):
    """Lets all load at once; answers what each said."""
    for tenant, work in tenants_and_works:
        tenant.tell("prepare", work=work)
    return hear_all([tenant for tenant, _ in tenants_and_works], START_PATIENCE_S)


def hear_all(tenants, patience_s):
    """The answers of all; raises TenantError for the first that has none, once all have been heard: an answer that is left
    would be taken for that of the next command."""
    answers, failed = [], None
    for tenant in tenants:
        try:
            answers.append(tenant.hear(patience_s))
        except TenantError as error:
            failed = failed or error
    if failed:
        raise failed
    return answers


def run_together(tenants_and_works, seconds, depth=4, lead_ms=50, **more):
    """Runs all at the same time; answers what each said, in their order. `more` is as in the worker's `run`."""
    begin = now_ns() + lead_ms * 1_000_000
    end = begin + int(seconds * 1e9)
    for tenant, work in tenants_and_works:
        tenant.tell("run", work=work, begin_ns=begin, end_ns=end, depth=depth, **more)
    return hear_all([tenant for tenant, _ in tenants_and_works], seconds + 30)


def rate(answer, skip_buckets=2):
    """Steps a second of a run, its beginning left out: whole steps in whole tenths of a second, as they must be counted
    where somebody is kept waiting. What runs all the time has its exact rate as `answer["rate"]`."""
    counts = answer["counts"][skip_buckets:]
    return sum(counts) / (len(counts) / 10) if counts else 0.0


def solo_rates(tenants_and_works, seconds):
    """What each does with the GPU to itself, one after the other."""
    return [run_together([pair], seconds)[0]["rate"] for pair in tenants_and_works]


def start_plain(suite, tenants, works):
    """A process without gpool, with `works` loaded, on a warm device: what it does alone is the whole that others are
    measured against. It may stay, idle, beside them."""
    plain = tenants.start("plain")
    for work in works:
        prepare([(plain, work)])
    warm_up(suite, plain, works[0])
    return plain


def warm_up(suite, tenant, work):
    """A cold device has other clocks than one that has worked for a while."""
    if not suite.simulated:
        run_together([(tenant, work)], 2.5)


class Whole:
    """What a plain process does alone in a second, directly before a measurement and directly after it. Where the two
    differ, so may what is laid beside them."""

    def __init__(self, before, after, clocks_mhz):
        self.both, self.rate = (before, after), (before + after) / 2
        # Of the device before, in between and after.
        self.clocks_mhz = clocks_mhz

    def interval(self, figure):
        """What `figure` makes of the one and of the other."""
        return sorted(figure(whole) for whole in self.both)

    def detail(self, **more):
        return {"whole": self.rate, "wholes": self.both, "clocks_mhz": self.clocks_mhz, **more}

    def ratio(self, steps):
        """Of that many steps a second: the ratio, and its detail."""
        return steps / self.rate, self.detail(interval=self.interval(lambda whole: steps / whole))


def beside_whole(suite, plain, work, measure, seconds=1):
    """What `measure` answers, and the Whole of what `plain` does before it and after it."""
    alone = lambda: solo_rates([(plain, work)], seconds)[0]
    (before, *first), (answer, *second), (after, *third) = (at_its_clock(suite, turn) for turn in (alone, measure, alone))
    return answer, Whole(before, after, [*first, *second, *third])


def at_its_clock(suite, measure):
    """What `measure` answers, and the device's clock meanwhile, or None where that is not told."""
    begun = time.monotonic()
    answer = measure()
    return answer, suite.watch.clock_mhz(begun, time.monotonic())


__all__ = ["Tenant", "TenantError", "Tenants", "at_its_clock", "beside_whole", "hear_all", "now_ns",
           "prepare", "rate", "run_together", "sleep_until", "solo_rates", "start_plain", "warm_up"]
