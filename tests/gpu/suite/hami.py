"""Tenants under somebody's build of HAMi-core, to be measured beside ours. Nothing of it is shipped or built here."""

import os

from .record import median
from .tenant import TenantError, prepare, rate, run_together, solo_rates

# The limit that a tenant is seen to obey before anything of it counts, and what it may have of the whole then.
TRIED_LIMIT, TRIED_MOST = 25, 0.6


def env(folder, cache, compute_percent, memory_gib):
    """What HAMi-core reads: the memory in `memory_gib` GiB, of the multiprocessors' time `compute_percent`, kept also while
    nobody else computes. Processes with one `cache` count as one container; the file must be theirs alone."""
    return {
        "LD_PRELOAD": os.path.join(folder, "libvgpu.so"),
        "CUDA_DEVICE_MEMORY_LIMIT": f"{memory_gib}g",
        "CUDA_DEVICE_SM_LIMIT": str(compute_percent),
        "GPU_CORE_UTILIZATION_POLICY": "force",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": cache,
    }


def start(suite, tenants, wanted, work=None):
    """Tenants under it, for each name in `wanted` one with so many percent of compute and so many GiB, seen to have the memory
    that they may have; with `work` loaded before they are asked, if that is given, so that no second context is made beside
    PyTorch's."""
    started = [(start_one(suite, tenants, name, percent, gib), gib) for name, (percent, gib) in wanted.items()]
    if work:
        prepare([(tenant, work) for tenant, _ in started])
    for tenant, gib in started:
        total = tenant.ask("memory")["total"]
        if total != gib << 30:
            raise TenantError(f"HAMi-core's limit of memory is not active: the tenant is shown {total} bytes")
    return [tenant for tenant, _ in started]


def start_one(suite, tenants, name, compute_percent, memory_gib):
    cache = os.path.join(suite.folder, f"hami-{name}.cache")
    if os.path.exists(cache):
        os.remove(cache)
    return tenants.start(f"hami-{name}", env=env(suite.hami, cache, compute_percent, memory_gib))


def obeys(suite, tenants, plain, work):
    """Whether a ceiling of compute is obeyed by a tenant that is alone; else its figures would be of nothing. Tried once in a
    run with each work, beside what `plain` does of it alone: launches are what is held back, so that one work may keep to the
    ceiling and another not."""
    if work not in suite.hami_obeys:
        suite.hami_obeys[work] = tried(suite, tenants, solo_rates([(plain, work)], 1)[0], work)
    return suite.hami_obeys[work]


def tried(suite, tenants, free_rate, work):
    tenant = start(suite, tenants, {"tried": (TRIED_LIMIT, 4 if suite.simulated else 8)}, work)[0]
    got = median([rate(run_together([(tenant, work)], 2)[0], 5) for _ in range(3)]) / free_rate
    tenant.end()
    name = f"hami.limit_{TRIED_LIMIT:03}.{work.partition(':')[0]}"
    suite.record.figure(name, got, "ratio", detail={"asked": TRIED_LIMIT / 100, "work": work})
    if got > TRIED_MOST:
        suite.record.note(f"HAMi-core: its limit of {TRIED_LIMIT} % of compute let {got:.2f} of {work} through: nothing under one counts")
    return got <= TRIED_MOST
