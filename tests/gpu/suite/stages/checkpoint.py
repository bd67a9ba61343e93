"""An idle tenant suspended to host memory and resumed by the driver's checkpoint API."""

import ctypes
import time
from ctypes import c_int, c_void_p

from ..driver import Driver, DriverError
from ..tenant import Tenants

SECONDS = 25
GIB = 1 << 30


def run(suite):
    record = suite.record
    try:
        driver = Driver()
    except OSError as error:
        record.note(f"checkpoint: skipped, this process finds no driver ({error})")
        return
    if not hasattr(driver.library, "cuCheckpointProcessCheckpoint"):
        record.note("checkpoint: skipped, the driver has no checkpoint API (570 and newer have)")
        return
    with Tenants() as tenants:
        tenant = tenants.start("idle")
        size = 8 * GIB
        tenant.ask("hold", size=size, byte=1)
        pid = c_int(tenant.ask("about")["pid"])
        steps = ["cuCheckpointProcessLock", "cuCheckpointProcessCheckpoint", "cuCheckpointProcessRestore",
                 "cuCheckpointProcessUnlock"]
        seconds = {}
        # Their arguments' structures are all reserved today; more zeros than any has.
        reserved = ctypes.create_string_buffer(256)
        for step in steps:
            begun = time.monotonic()
            try:
                driver.call(step, pid, ctypes.cast(reserved, c_void_p))
            except DriverError as error:
                record.note(f"checkpoint: {error}")
                return
            seconds[step] = time.monotonic() - begun
        suspend, resume = (seconds[step] for step in steps[1:3])
        record.figure("checkpoint.suspend", size / GIB / suspend, "GiB/s", detail=seconds)
        record.figure("checkpoint.resume", size / GIB / resume, "GiB/s")
        record.figure("checkpoint.lock", seconds[steps[0]] * 1e3, "ms")
