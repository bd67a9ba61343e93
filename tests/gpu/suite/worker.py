"""A tenant: a process that computes when it is told to.

It reads one JSON object a line from standard input and answers each with one on standard output. Several run on one GPU
at the same time; their clocks are the host's, so what they say can be laid side by side.
"""

import collections
import json
import os
import random
import resource
import struct
import sys
import time

from . import driver
from .graph_facts import facts
from .libraries import mapped
from .work import Works

BUCKET_NS = 100_000_000
# So many slices of a tenant with a ceiling, at least, say how much it does in each.
SLICES = 4
# The end of a wait for a moment, in which the clock is looked at all the time.
POLLED_NS = 2_000_000


def now_ns():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def sleep_until(moment_ns):
    """Sleeps until 2 ms before, and looks at the clock from then on: a sleep may end late."""
    while (left := moment_ns - now_ns()) > 0:
        if left > POLLED_NS:
            time.sleep(min((left - POLLED_NS) / 1e9, 0.05))


class Worker:
    """Answers commands; each method is one."""

    def __init__(self):
        self.works, self.kept = Works(), []

    def prepare(self, work, steps=3):
        """Loads everything and runs a few steps, so that no run pays for it."""
        made = self.works.get(work)
        for _ in range(steps):
            made.launch()
        made.reached(made.mark())
        return {"libraries": mapped()}

    def run(self, work, begin_ns, end_ns, depth=4, skip_ns=200_000_000, core=None,
            is_sleeping=False):
        """Steps without end between two moments, at most `depth` of them outstanding; with the launching thread on one
        processor if `core` is given, which threads that are there already do not follow; asleep while it waits for a step if
        `is_sleeping`, else as the driver waits by default.

        Answers how many ended in each tenth of a second; how many did in a second, from the first to the last end after
        `skip_ns`, and how many from one slice to another if it has slices; the times between these ends in microseconds; what a
        step took of processors' time in all threads; and what disturbed it."""
        made, before = self.works.get(work), os.sched_getaffinity(0)
        try:
            if core is not None:
                os.sched_setaffinity(0, [core])
            disturbed = disturbance(core)
            answer = self._steps(made, begin_ns, end_ns, depth, skip_ns, is_sleeping)
            lost = [after - earlier for after, earlier in zip(disturbance(core), disturbed)]
            return {**answer, "stolen_ms": lost[0], "switches": lost[1]}
        finally:
            # What is loaded later, and the threads that it starts, must not be held to that processor.
            os.sched_setaffinity(0, before)

    def _steps(self, made, begin_ns, end_ns, depth, skip_ns, is_sleeping):
        marks, counts, ends = collections.deque(), [0] * ((end_ns - begin_ns) // BUCKET_NS + 1), []
        sleep_until(begin_ns)
        spent_s = time.process_time()
        while now_ns() < end_ns:
            made.launch()
            marks.append(made.mark(is_sleeping))
            if len(marks) >= depth:
                made.reached(marks.popleft())
                ended = now_ns()
                if ended < end_ns:
                    counts[(ended - begin_ns) // BUCKET_NS] += 1
                ends.append(ended)
        spent_s = time.process_time() - spent_s
        while marks:
            made.reached(marks.popleft())
        steady = [end for end in ends if begin_ns + skip_ns <= end < end_ns]
        steady_ns = steady[-1] - steady[0] if steady else 0
        gaps = [(later - end) / 1e3 for end, later in zip(steady, steady[1:])]
        return {"counts": counts[:(end_ns - begin_ns) // BUCKET_NS], "gaps_us": summary(gaps),
                "rate": (len(steady) - 1) * 1e9 / steady_ns if steady_ns else 0.0, "rate_of_slices": rate_of_slices(steady),
                "cpu_us": spent_s * 1e6 / max(1, len(ends)),
                "stalls": stalls(gaps, [(end - begin_ns) / 1e6 for end in steady[1:]])}

    def requests(self, work, begin_ns, end_ns, rate, seeds=(1,), steps=1):
        """Requests that come at random, for each of the `seeds` at this rate (a Poisson process); answers each one's
        milliseconds from arrival to end, and from when the one before it had ended."""
        made, times, served = self.works.get(work), [], []
        for arrival in sorted(arrival for seed in seeds for arrival in arrivals(seed, begin_ns, end_ns, rate)):
            sleep_until(arrival)
            begun = now_ns()
            for _ in range(steps):
                made.launch()
            made.reached(made.mark())
            times.append((now_ns() - arrival) / 1e6)
            served.append((now_ns() - begun) / 1e6)
        return {"milliseconds": times, "served": served}

    def pulses(self, work, count, pause_ms, end_ns=None):
        """One step after each pause, at most until `end_ns`; answers each one's milliseconds: what it takes to get lent
        time back."""
        made, times = self.works.get(work), []
        for _ in range(count):
            time.sleep(pause_ms / 1e3)
            if end_ns is not None and now_ns() > end_ns:
                break
            begun = now_ns()
            made.launch()
            made.reached(made.mark())
            times.append((now_ns() - begun) / 1e6)
        return {"milliseconds": times}

    def paused(self, work, steps, pause_ms, begin_ns, end_ns, skip_ns=500_000_000):
        """So many steps and a wait for them, then a pause, between two moments: how many such rounds a second, from the first to the
        last end after `skip_ns`."""
        made, ends = self.works.get(work), []
        sleep_until(begin_ns)
        while now_ns() < end_ns:
            for _ in range(steps):
                made.launch()
            made.reached(made.mark())
            ends.append(now_ns())
            time.sleep(pause_ms / 1e3)
        steady = [end for end in ends if begin_ns + skip_ns <= end < end_ns]
        steady_ns = steady[-1] - steady[0] if steady else 0
        return {"rate": (len(steady) - 1) * 1e9 / steady_ns if steady_ns else 0.0}

    def memory(self, by_torch=False):
        """As the program is shown it: by PyTorch, if it is to have the only context."""
        if by_torch:
            self.works.with_torch()
        free, total = self.works.memory()
        return {"free": free, "total": total, "libraries": mapped()}

    def fill_up(self, allocator, piece, most, byte=None):
        """Takes pieces until one is refused, at most `most`, and keeps them; filled with `byte` if that is given."""
        context = self.works.driver_context()
        take = driver.allocators(context)[allocator]
        for taken in range(most):
            try:
                address = take(piece)
            except driver.DriverError as error:
                return {"piece": piece, "pieces": taken, "code": error.code}
            if byte is not None:
                driver.fill(context, address, byte, piece)
        return {"piece": piece, "pieces": most, "code": 0}

    def fill_up_torch(self, piece, most):
        """The same by tensors of PyTorch's."""
        torch = self.works.with_torch()
        for taken in range(most):
            try:
                self.kept.append(torch.empty(piece, dtype=torch.uint8, device="cuda"))
            except torch.cuda.OutOfMemoryError:
                return {"piece": piece, "pieces": taken, "code": driver.OUT_OF_MEMORY}
        return {"piece": piece, "pieces": most, "code": 0}

    def hold(self, size, byte=None):
        """Takes one piece, and fills it with `byte` if that is given."""
        context = self.works.driver_context()
        address = context.allocate(size)
        if byte is not None:
            driver.fill(context, address, byte, size)
        self.kept.append((address, size))
        return {"address": address, "libraries": mapped()}

    def recall(self, byte, part):
        """Reads all that it holds, `part` bytes at a time: how many of them are not `byte`, and the milliseconds that the first took."""
        context, wrong, first_ms = self.works.driver_context(), 0, None
        for address, size in self.kept:
            for offset in range(0, size, part):
                begun = now_ns()
                seen = driver.copy_out(context, address + offset, min(part, size - offset))
                first_ms = (now_ns() - begun) / 1e6 if first_ms is None else first_ms
                wrong += len(seen) - seen.count(byte)
        return {"wrong": wrong, "first_ms": first_ms}

    def beyond(self, piece, most, byte):
        """Takes pieces until one is refused, at most `most`, keeps them and fills them with `byte`: how many, and how many of them lie in
        the host's memory by the driver's word."""
        context, self.places, code = self.works.driver_context(), {"device": [], "host": []}, 0
        for _ in range(most):
            try:
                address = context.allocate(piece)
            except driver.DriverError as error:
                code = error.code
                break
            self.places["host" if driver.is_on_host(context, address) else "device"].append(address)
            driver.fill(context, address, byte, piece)
            self.kept.append((address, piece))
        return {"piece": piece, "pieces": len(self.kept), "code": code, "on_host": len(self.places["host"])}

    def computed_there(self, blocks=64):
        """A kernel writes numbers to a piece in the host's memory and to one of the device's: how many are wrong. Then both are as they
        were."""
        context, wrong = self.works.driver_context(), 0
        size, byte = self.kept[0][1], driver.copy_out(self.works.driver_context(), self.kept[0][0], 1)[0]
        for places in self.places.values():
            context.launch_numbers(blocks, places[0])
            context.synchronize()
            seen = struct.unpack(f"<{blocks * 256}I", driver.copy_out(context, places[0], blocks * 1024))
            wrong += sum(number != index * 40503 % (1 << 32) for index, number in enumerate(seen))
            driver.fill(context, places[0], byte, size)
        return {"wrong": wrong}

    def rates(self, rounds, pieces):
        """GB/s at which the device sets what lies in each memory, and copies it to its own: as many of `pieces` as there are one after
        the other, `rounds` times, with one wait at the end. The kept pieces are what they were."""
        context, answer = self.works.driver_context(), {}
        size, byte = self.kept[0][1], driver.copy_out(self.works.driver_context(), self.kept[0][0], 1)[0]
        # Copies go to the last of the device's.
        *_, target = self.places["device"]
        ways = {"write": lambda place: driver.begin_fill(context, place, byte, size),
                "read": lambda place: driver.begin_copy(context, target, place, size)}
        for name, places in self.places.items():
            chosen, answer[name] = [place for place in places if place != target][:pieces], {}
            for way, begin in ways.items():
                # What is done first is slower, and counts for nothing.
                for count in (1, rounds):
                    begun = now_ns()
                    for place in chosen * count:
                        begin(place)
                    context.synchronize()
                    took_ns = now_ns() - begun
                answer[name][way] = rounds * len(chosen) * size / took_ns
        return answer

    def leave_context(self):
        """Has its context go: how many of the kept pieces the driver still knows."""
        context = self.works.driver_context()
        addresses = [address for address, _ in self.kept]
        context.destroy()
        other = driver.Context(context.driver)
        self.works.context, self.kept = other, []
        return {"still_there": sum(driver.is_known(other, address) for address in addresses)}

    def hold_and_free(self, size):
        """Takes one piece and gives it back at once."""
        context = self.works.driver_context()
        context.free(context.allocate(size))
        return {}

    def residue(self, piece, most, part, step, byte):
        """Takes fresh pieces until one is refused, at most `most`, and reads `part` bytes of each `step`: how many of them
        are `byte`, and how many are not zero."""
        context, looked, found, other = self.works.driver_context(), 0, 0, 0
        for taken in range(most):
            try:
                address = context.allocate(piece)
            except driver.DriverError as error:
                return {"pieces": taken, "code": error.code, "looked_at": looked, "found": found, "not_zero": other}
            for offset in range(0, piece, step):
                seen = driver.copy_out(context, address + offset, part)
                looked += len(seen)
                found += seen.count(byte)
                other += len(seen) - seen.count(0)
        return {"pieces": most, "code": 0, "looked_at": looked, "found": found, "not_zero": other}

    def graphs(self):
        """What the driver does with memory that graphs allocate."""
        return facts(self.works.driver_context())

    def about(self):
        """The device and the libraries of this process."""
        cuda = self.works.driver_context().driver
        return {"device": cuda.device_name(), "version": cuda.version(), "multiprocessors": cuda.multiprocessors(),
                "libraries": mapped(), "pid": os.getpid()}


def arrivals(seed, begin_ns, end_ns, rate):
    chance, arrival = random.Random(seed), begin_ns
    while (arrival := arrival + int(chance.expovariate(rate) * 1e9)) < end_ns:
        yield arrival


def summary(values):
    """Count, mean, median, 99th percentile and the greatest, and up to some thousand of the values from small to great, evenly
    taken."""
    ordered = sorted(values)
    if not ordered:
        return {"count": 0, "some": []}
    at = lambda part: ordered[min(len(ordered) - 1, int(part * len(ordered)))]
    return {"count": len(ordered), "mean": sum(ordered) / len(ordered), "p50": at(0.5), "p99": at(0.99), "most": ordered[-1],
            "some": [round(value, 2) for value in ordered[::len(ordered) // 1000 or 1]]}


def rate_of_slices(ends):
    """Steps a second of a tenant that pauses again and again, as one with a ceiling does at the end of each slice: from the first
    step after a pause to the first one after another, which are whole slices and what follows each. A window that ends where it
    likes has one slice more or less. None of one that has few pauses."""
    gaps = [later - end for end, later in zip(ends, ends[1:])]
    ordered = sorted(gaps)
    if len(gaps) <= SLICES:
        return None
    # Not what the host delays, which is in the middle of a slice.
    least = max(2 * ordered[len(gaps) // 2], ordered[-SLICES - 1] / 2)
    firsts = [index + 1 for index, gap in enumerate(gaps) if gap > least]
    if len(firsts) <= SLICES:
        return None
    return (firsts[-1] - firsts[0]) * 1e9 / (ends[firsts[-1]] - ends[firsts[0]])


def disturbance(core):
    """Milliseconds for which the host has kept processor `core` for itself, and how often threads of this process were
    put aside for others, both so far."""
    switches, fields = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw, []
    if core is not None:
        with open("/proc/stat") as file:
            fields = next((line.split() for line in file if line.startswith(f"cpu{core} ")), [])
    # The eighth value, in ticks; see proc(5).
    return (int(fields[8]) * 1000 / os.sysconf("SC_CLK_TCK") if len(fields) > 8 else 0.0), switches


def stalls(gaps, moments, shown=30):
    """The first gaps that are twice the median, with their moments in milliseconds: what comes again and again has a
    period."""
    usual = sorted(gaps)[len(gaps) // 2] if gaps else 0
    long = [(round(moment, 2), round(gap)) for gap, moment in zip(gaps, moments) if gap > 2 * usual]
    return {"count": len(long), "first": long[:shown]}


def main():
    worker = Worker()
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = getattr(worker, order.pop("command"))(**order)
        except Exception as error:  # Whatever it is, the suite must hear of it and may go on.
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
