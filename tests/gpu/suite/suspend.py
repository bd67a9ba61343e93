"""Suspends a process to host memory and resumes it by the driver's checkpoint API, twice, and prints the seconds of each
step of each round as JSON, or why it cannot be, or what failed: `python -m suite.suspend PID`.
"""

import ctypes
import json
import sys
import time
from ctypes import c_int, c_void_p

STEPS = ["cuCheckpointProcessLock", "cuCheckpointProcessCheckpoint", "cuCheckpointProcessRestore",
         "cuCheckpointProcessUnlock"]
ROUNDS = 2
# CUDA_ERROR_NOT_FOUND and CUDA_ERROR_NOT_SUPPORTED: this cannot be here. Whatever else is answered is a failure.
UNSUPPORTED = (500, 801)


def main(pid):
    from .driver import Driver, DriverError

    try:
        driver = Driver()
    except OSError as error:
        return {"skipped": f"this process finds no driver ({error})"}
    if not hasattr(driver.library, STEPS[1]):
        return {"skipped": "the driver has no checkpoint API (570 and newer have)"}
    # Their arguments' structures are all reserved today; more zeros than any has.
    reserved, rounds = ctypes.create_string_buffer(256), []
    call = lambda step: driver.call(step, c_int(pid), ctypes.cast(reserved, c_void_p))
    for _ in range(ROUNDS):
        seconds = {}
        for step in STEPS:
            begun = time.monotonic()
            try:
                call(step)
            except DriverError as error:
                if seconds:
                    unlock(call)
                return {"rounds": rounds, "skipped" if error.code in UNSUPPORTED else "failed": str(error)}
            seconds[step] = time.monotonic() - begun
        rounds.append(seconds)
    return {"rounds": rounds}


def unlock(call):
    """A process that is locked stays so for ever; whether this works does not matter here."""
    from .driver import DriverError

    try:
        call(STEPS[-1])
    except DriverError:
        pass


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]))))
