"""Power of the device: without a context, with an idle one, with memory held, and busy."""

import time

from ..record import Skipped, median
from ..tenant import Tenants, now_ns, prepare

SECONDS = 19
NEEDS_GPOOL = False


def run(suite):
    seconds = 1 if suite.simulated else suite.seconds(2)
    record, work = suite.record, suite.choose("torch-matmul:8192", "fused:4096:20000", "spin:5000000")
    settle = lambda: time.sleep(0.1 if suite.simulated else 1)
    try:
        suite.nvml.power_watts()
    except OSError as error:
        raise Skipped(str(error)) from error
    settle()
    without = watts(suite, seconds)
    record.figure("power.no_context", without, "W")
    with Tenants() as tenants:
        tenant = tenants.start("holder")
        tenant.ask("memory")
        settle()
        record.figure("power.idle_context", watts(suite, seconds), "W", without)
        tenant.ask("hold", size=(2 if suite.simulated else 32) << 30)
        settle()
        record.figure("power.memory_held", watts(suite, seconds), "W", without)
        prepare([(tenant, work)])
        begin = now_ns()
        tenant.tell("run", work=work, begin_ns=begin, end_ns=begin + int((seconds + 1) * 1e9), depth=2)
        time.sleep(1)
        record.figure("power.busy", watts(suite, seconds - 0.2), "W", without)
        tenant.hear(60)


def watts(suite, seconds):
    samples, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        samples.append(suite.nvml.power_watts())
        time.sleep(0.1)
    return median(samples)
