"""An idle tenant suspended to host memory and resumed by the driver's checkpoint API."""

import json
import os
import subprocess
import sys

from ..record import Skipped
from ..suspend import STEPS
from ..tenant import SUITE, TenantError, Tenants, plain_env

SECONDS = 10
NEEDS_GPOOL = False
# For all of it; one round of 8 GiB took 6 s on an H100.
PATIENCE_S = 16
GIB = 1 << 30


def run(suite):
    record = suite.record
    with Tenants() as tenants:
        tenant = tenants.start("idle")
        size = 4 * GIB
        tenant.ask("hold", size=size, byte=1)
        # By a process of its own: a call of the driver that does not return must not hold up the suite.
        command = [sys.executable, "-m", "suite.suspend", str(tenant.ask("about")["pid"])]
        try:
            ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=SUITE,
                                 env={**os.environ, **plain_env()})
        except subprocess.TimeoutExpired:
            tenant.kill()
            raise TenantError(f"the calls do not return within {PATIENCE_S} s") from None
        if ran.returncode != 0:
            raise TenantError(ran.stderr.strip()[-300:])
        said = json.loads(ran.stdout)
        for end, seconds in zip(("", "_again"), said.get("rounds", [])):
            suspend, resume = (seconds[step] for step in STEPS[1:3])
            record.figure(f"checkpoint.suspend{end}", size / GIB / suspend, "GiB/s", detail=seconds)
            record.figure(f"checkpoint.resume{end}", size / GIB / resume, "GiB/s")
            record.figure(f"checkpoint.lock{end}", seconds[STEPS[0]] * 1e3, "ms")
        if "skipped" in said:
            raise Skipped(said["skipped"])
        if "failed" in said:
            raise TenantError(said["failed"])
