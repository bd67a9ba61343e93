"""An idle tenant suspended to host memory and resumed by the driver's checkpoint API: a plain one, one with a share, and one with a
share by `gpool suspend`, which comes back when it is asked for what it holds.
"""

import json
import os
import subprocess
import sys
import time

from ..host import HostError, gpool, lease, process_of
from ..record import Skipped
from ..suspend import STEPS
from ..tenant import SUITE, TenantError, Tenants, plain_env, prepare

SECONDS = 30
NEEDS_GPOOL = False
# For all of it; one round of 8 GiB took 6 s on an H100.
PATIENCE_S = 16
GIB = 1 << 30
# It is read in such parts.
PART = 64 << 20
SIZE = 4 * GIB
# Of a simulated GPU, whose memory this machine's processors fill.
SIMULATED_SIZE = GIB // 4
# What a tenant computes once it is resumed.
WORK = "fused:32:100"


def run(suite):
    plain = tried(suite, "checkpoint.", None)
    if suite.host:
        memory = "6GiB" if suite.simulated else "8GiB"
        shared = tried(suite, "checkpoint.shared.", ["--fraction", "0.5", "--memory", memory])
        # Whether it can be is what is asked; that it cannot is no failure.
        suite.record.figure("checkpoint.shared", words(shared), "", words(plain))
        suite.record.figure("checkpoint.gpool", words(by_gpool(suite, memory)), "", words(plain))
    if "skipped" in plain:
        raise Skipped(plain["skipped"])
    if "failed" in plain:
        raise TenantError(plain["failed"])


def words(said):
    return said.get("skipped") or said.get("failed") or "works"


def tried(suite, beginning, share):
    """What came of it, with a figure of each step."""
    with Tenants() as tenants:
        tenant = tenants.start("idle", share)
        try:
            size = SIMULATED_SIZE if suite.simulated else SIZE
            tenant.ask("hold", size=size, byte=1)
            inside = tenant.ask("about")["pid"]
            said = suspended(tenant, process_of(tenant.lease, inside) if share else inside)
            figures(suite.record, beginning, size, said.get("rounds", []))
            if "skipped" not in said and "failed" not in said:
                prepare([(tenant, WORK)])
            return said
        except (TenantError, HostError) as error:
            return {"failed": str(error)}


def by_gpool(suite, memory):
    """What came of `gpool suspend`, with figures of it and of the first call that brings it back."""
    if suite.host.lacks:
        return {"skipped": f"skipped: {suite.host.lacks}"}
    size = SIMULATED_SIZE if suite.simulated else SIZE
    with Tenants() as tenants:
        tenant = tenants.start("suspended", ["--fraction", "0.5", "--memory", memory])
        try:
            tenant.ask("hold", size=size, byte=1)
            begun = time.monotonic()
            gpool("suspend", tenant.lease)
            out_s = time.monotonic() - begun
            left = lease(tenant.lease)["suspension"]["stage"]
            recalled = tenant.ask("recall", patience_s=PATIENCE_S, byte=1, part=PART)
            back_s = recalled["first_ms"] / 1e3
            record = suite.record.figure
            record("checkpoint.gpool.suspend", size / GIB / out_s, "GiB/s", detail={"seconds": out_s, "stage": left})
            record("checkpoint.gpool.resume", size / GIB / back_s, "GiB/s", detail={"seconds": back_s})
            record("checkpoint.gpool.wrong", recalled["wrong"], "bytes")
            prepare([(tenant, WORK)])
            return {} if left == "suspended" and recalled["wrong"] == 0 else {"failed": f"{left}, {recalled}"}
        except HostError as error:
            # It says which container, and that gpool events says why.
            return {"skipped": str(error)} if "is not suspended" in str(error) else {"failed": str(error)}
        except TenantError as error:
            return {"failed": str(error)}


def suspended(tenant, pid):
    """What the process `pid` of the tenant's went through. By a process of its own: a call of the driver that does not return
    must not hold up the suite."""
    command = [sys.executable, "-m", "suite.suspend", str(pid)]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=SUITE,
                             env={**os.environ, **plain_env()})
    except subprocess.TimeoutExpired:
        tenant.kill()
        raise TenantError(f"the calls do not return within {PATIENCE_S} s") from None
    if ran.returncode != 0:
        raise TenantError(ran.stderr.strip()[-300:])
    return json.loads(ran.stdout)


def figures(record, beginning, size, rounds):
    for end, seconds in zip(("", "_again"), rounds):
        suspend, resume = (seconds[step] for step in STEPS[1:3])
        record.figure(f"{beginning}suspend{end}", size / GIB / suspend, "GiB/s", detail={"seconds": suspend, "steps": seconds})
        record.figure(f"{beginning}resume{end}", size / GIB / resume, "GiB/s", detail={"seconds": resume})
        record.figure(f"{beginning}lock{end}", seconds[STEPS[0]] * 1e3, "ms")
