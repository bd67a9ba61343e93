"""What gpool tells of this GPU and of who uses it, beside the driver's own figures."""

import json
import time

from ..host import gpool, lease
from ..sections import Sections
from ..tenant import Tenants, now_ns, prepare

SECONDS = 18
# How long a program does nothing, and how long it computes: many of NVML's sampling periods.
IDLE_S, BUSY_S = 2.5, 2.5
# What a lease takes and gives back, so that its most is not what it has, and until gpool has counted that.
HELD_BYTES, COUNTED_S = 1 << 30, 1.5
# Until NVML has told of all that a process has done.
LATE_S = 2
SHARE = ["--fraction", "0.5", "--memory", "4GiB"]


def run(suite):
    sections = Sections(suite.record)
    with sections.one("health"):
        health(suite)
    with sections.one("use"):
        use(suite)
    with sections.one("peak"):
        peak(suite)
    sections.end()


def health(suite):
    """What is wrong with the GPU, and what the driver answers to each question that this is made from."""
    its = json.loads(gpool("gpu", "ls", "--format", "json"))["gpus"][0]
    found = its.get("health")
    words = "unknown" if found is None else " ".join(finding["kind"] for finding in found) or "ok"
    suite.record.figure("told.health", words, "", detail={"found": found, "driver": suite.nvml.health()})


def use(suite):
    """Of a program with a share and of a plain one: for how long gpool says that it has done nothing, and how often the driver
    names it among those who keep the GPU busy, while it has a context and nothing else and while it computes."""
    record, work = suite.record, suite.choose("torch-matmul:2048", "fused:264:400", "spin:300000")
    with Tenants() as tenants:
        pair = {"share": tenants.start("share", SHARE), "plain": tenants.start("plain")}
        prepare([(tenant, work) for tenant in pair.values()])
        # What was loaded is in no sample after this.
        time.sleep(1.5)
        begun = time.time()
        time.sleep(IDLE_S)
        idle = lambda: lease(pair["share"].lease).get("idle_seconds")
        record.figure("told.idle_seconds", idle(), "s", aim=f">= {IDLE_S - 1}")
        plain = pair["plain"].process.pid
        record.figure("told.driver_names_idle", named(suite, plain, begun), "samples")
        for name, tenant in pair.items():
            before, unleased = drawn(suite, pair["share"]), unleased_s()
            begun, begin = time.time(), now_ns()
            tenant.tell("run", work=work, begin_ns=begin, end_ns=begin + int(BUSY_S * 1e9), depth=4)
            time.sleep(BUSY_S - 0.5)
            if name == "share":
                record.figure("told.busy_idle_seconds", idle(), "s", aim="<= 1")
            else:
                record.figure("told.driver_names_busy", named(suite, plain, begun), "samples")
            tenant.hear(30)
            if name == "share":
                time.sleep(COUNTED_S)
                energy(record, before, drawn(suite, tenant))
                record.figure("told.baseline_of_lease", unleased_s() - unleased, "s", aim="<= 0.1")
            else:
                time.sleep(LATE_S)
                record.figure("told.baseline_busy", (unleased_s() - unleased) / BUSY_S, "", aim="0.7 to 1.2")


def unleased_s():
    """For how long all without a lease have kept the GPU at work until now, by `gpool baseline`, which goes by NVML alone."""
    users = json.loads(gpool("baseline", "--format", "json"))["baseline"]["users"]
    return sum(user["busy_gpu_ns"] for user in users) / 1e9


def drawn(suite, tenant):
    """By the board's counter and by gpool's account of the lease, millijoules; None where the board has no counter."""
    board = suite.nvml.energy_millijoules()
    return None if board is None else (board, lease(tenant.lease)["gpus"][0]["energy_millijoules"])


def energy(record, before, after):
    """While one lease works, it is it that the GPU draws for: but for what it draws with nobody on it, of the half that is promised
    to nobody, and for a second at each end."""
    if before is None or after is None:
        record.figure("told.energy", None, "", aim="0.6 to 1.1")
        return
    board, own = after[0] - before[0], after[1] - before[1]
    record.figure("told.energy", own / board, "", aim="0.6 to 1.1", detail={"board_millijoules": board, "lease": own})


def named(suite, pid, begun):
    """In how many samples of NVML's that were taken after `begun`, in seconds of Unix time, the process does something; None
    where NVML has no such figures."""
    samples = suite.nvml.process_samples(int(begun * 1e6))
    return None if samples is None else sum(its["pid"] == pid and any(its["percents"]) for its in samples)


def peak(suite):
    """The most that a lease has held by gpool's account, after it has given something back, and by the device's own figure."""
    with Tenants() as tenants:
        before = suite.nvml.used_bytes()
        tenant = tenants.start("peak", SHARE)
        tenant.ask("memory")
        time.sleep(0.3)
        context = suite.nvml.used_bytes() - before
        tenant.ask("hold_and_free", size=HELD_BYTES)
        time.sleep(COUNTED_S)
        its = lease(tenant.lease)
        suite.record.figure("told.peak", its["memory_peak_bytes"], "bytes", context + HELD_BYTES,
                            detail={"held_now": its["memory_used_bytes"], "context": context})
