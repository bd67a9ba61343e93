"""Memory that graphs allocate: what the driver does with it by itself, and under gpool."""

from ..graph_facts import ALLOCATES, FREES, MIB
from ..tenant import Tenants

SECONDS = 9
# What is set aside at the least for eight pieces of 64 MiB that are there together.
TOGETHER = 512 * MIB


def run(suite):
    record = suite.record
    said = {}
    for name, options in (("plain", None), ("share", ["--fraction", "0.5", "--memory", "8GiB"])):
        with Tenants() as tenants:
            tenant = tenants.start(name, options) if options else tenants.start(name)
            said[name] = tenant.ask("graphs")
    plain, share = said["plain"], said["share"]
    for name, value in share.items():
        if not isinstance(value, list):
            record.figure(f"graphs.{name}", value, "ms" if name.endswith("_ms") else "bytes", plain[name])
    # What the shim takes for granted of the driver.
    record.figure("graphs.nodes_in_order", int(plain["in_turn_types"] == [ALLOCATES, FREES] * 8), "", aim="== 1")
    record.figure("graphs.uploads_told_at_once", int(plain["upload_reserved_at_once"] >= TOGETHER), "", aim="== 1")
    record.figure("graphs.kept_by_the_stream", int(plain["alternating_reserved"] == plain["together_reserved"]), "",
                  aim="== 1")
