"""What has no room within a cap and lies in the host's memory: that nothing of it is on the device, that it is kept, how fast the device
reaches it, and what suspending makes of it."""

import time

from ..host import HostError, gpool, lease
from ..record import Skipped
from ..tenant import TenantError, Tenants

SECONDS = 25
GIB, PIECE = 1 << 30, 64 << 20
CAP_GIB, SPILL_GIB = 2, 2
PATTERN = 0x5A
# An entry of eight bytes for each page of 4 KiB.
TABLES_PER_GIB = 2 << 20
# It is read in such parts.
PART = 64 << 20
# So many pieces are written or copied one after the other, so many times: together they are larger than any device's cache, and take
# so long that the wait for all of them does not show.
PIECES, ROUNDS = 8, 8
# Until the device's figures are those of now.
SETTLED_S = 0.5
PATIENCE_S = 20


def run(suite):
    share = ["--fraction", "0.5", "--memory", f"{CAP_GIB}GiB", "--spill", f"{SPILL_GIB}GiB"]
    with Tenants() as tenants:
        before = suite.nvml.used_bytes()
        tenant, figure = started(tenants, share), suite.record.figure
        # What Python, the driver's library and a context take of the host's memory is no spilling.
        tenant.ask("memory")
        cgroup_before, why_before = of_cgroup(tenant)
        said = tenant.ask("beyond", piece=PIECE, most=4 * CAP_GIB * GIB // PIECE, byte=PATTERN)
        time.sleep(SETTLED_S)
        above = suite.nvml.used_bytes() - before - CAP_GIB * GIB
        # Above it may be the device's tables of pages for what lies in the host's memory.
        figure("spill.over_cap", above, "bytes", aim=f"<= {SPILL_GIB * TABLES_PER_GIB}", detail=said)
        figure("spill.on_host", said["on_host"], "pieces", aim=f"== {SPILL_GIB * GIB // PIECE}")
        figure("spill.told", lease(tenant.lease)["spilled_bytes"] - said["on_host"] * PIECE, "bytes", aim="== 0")
        cgroup_after, why_after = of_cgroup(tenant)
        if why := why_before or why_after:
            suite.record.note(f"spill.of_cgroup is left out: {why}")
        else:
            figure("spill.of_cgroup", cgroup_after - cgroup_before, "bytes", SPILL_GIB * GIB)
        figure("spill.wrong", tenant.ask("recall", byte=PATTERN, part=PART)["wrong"], "bytes", aim="== 0")
        if suite.simulated:
            suite.record.note("spill.kernel_wrong: skipped, simulated kernels compute nothing")
        else:
            figure("spill.kernel_wrong", tenant.ask("computed_there")["wrong"], "numbers", aim="== 0")
        rates = tenant.ask("rates", rounds=ROUNDS, pieces=PIECES)
        for name in ("write", "read"):
            figure(f"spill.{name}", rates["host"][name], "GB/s", rates["device"][name])
        suspended(suite, tenant)
        # The driver says how much it could give the host back only by doing it.
        figure("spill.with_context", tenant.ask("leave_context")["still_there"], "pieces", aim="== 0")


def started(tenants, share):
    try:
        return tenants.start("beyond", share)
    except TenantError as error:
        # A supervisor that runs already says how much of the host's memory containers may have.
        if "of the host's memory" in str(error):
            raise Skipped(str(error)) from None
        raise


def of_cgroup(tenant):
    """What the host's memory controller counts with the tenant's cgroup, or None and why there is no such figure."""
    try:
        with open(f"/sys/fs/cgroup{lease(tenant.lease)['cgroup']}/memory.current") as file:
            return int(file.read()), None
    except (OSError, ValueError, KeyError, HostError) as error:
        return None, f"{type(error).__name__}: {error}"


def suspended(suite, tenant):
    """Whether what lies in the host's memory is still there when the rest has been moved there too and comes back."""
    if suite.host.lacks:
        suite.record.note(f"spill.suspended.wrong is left out: {suite.host.lacks}")
        return
    try:
        gpool("suspend", tenant.lease)
    except HostError as error:
        suite.record.note(f"spill: not suspended: {error}")
        return
    recalled = tenant.ask("recall", patience_s=PATIENCE_S, byte=PATTERN, part=PART)
    suite.record.figure("spill.suspended.wrong", recalled["wrong"], "bytes", aim="== 0")
