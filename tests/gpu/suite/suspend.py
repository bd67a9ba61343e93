"""Suspends a process to host memory and resumes it by the driver's checkpoint API, and prints the seconds of each step as
JSON, or why it cannot be: `python -m suite.suspend PID`.
"""

import ctypes
import json
import sys
import time
from ctypes import c_int, c_void_p

STEPS = ["cuCheckpointProcessLock", "cuCheckpointProcessCheckpoint", "cuCheckpointProcessRestore",
         "cuCheckpointProcessUnlock"]


def main(pid):
    from .driver import Driver, DriverError

    try:
        driver = Driver()
    except OSError as error:
        return {"skipped": f"this process finds no driver ({error})"}
    if not hasattr(driver.library, STEPS[1]):
        return {"skipped": "the driver has no checkpoint API (570 and newer have)"}
    # Their arguments' structures are all reserved today; more zeros than any has.
    reserved, seconds = ctypes.create_string_buffer(256), {}
    for step in STEPS:
        begun = time.monotonic()
        try:
            driver.call(step, c_int(pid), ctypes.cast(reserved, c_void_p))
        except DriverError as error:
            return {"skipped": str(error)}
        seconds[step] = time.monotonic() - begun
    return seconds


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]))))
