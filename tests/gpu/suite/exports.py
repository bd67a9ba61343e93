"""Are all functions of the driver found through the shims, by every way in which programs look for them?"""

import json
import os
import re
import subprocess
import sys
import tempfile

from .elf import exported_functions
from .tenant import SUITE, TenantError, plain_env

# Asks the loader for each name, as a program that links the library does; prints those that are not there.
BY_THE_LOADER = """
import ctypes, json, sys
library, names = ctypes.CDLL(sys.argv[1]), json.load(open(sys.argv[2]))
print(json.dumps([name for name in names if not hasattr(library, name)]))
"""
# Asks cuGetProcAddress, as the CUDA runtime does: for the names without their versions, as programs of two versions of
# CUDA, with streams of each kind. Prints what is found.
BY_THE_DRIVER = """
import ctypes, json, sys
library, names, found = ctypes.CDLL(sys.argv[1]), json.load(open(sys.argv[2])), []
library.cuInit(0)
for name in names:
    for version in (12000, 13000):
        for flags in (0, 1, 2):
            function, status = ctypes.c_void_p(), ctypes.c_int()
            code = library.cuGetProcAddress_v2(name.encode(), ctypes.byref(function), ctypes.c_int(version),
                                               ctypes.c_uint64(flags), ctypes.byref(status))
            if code == 0 and function.value:
                found.append([name, version, flags])
print(json.dumps(found))
"""
# How many of what is missing are kept.
KEPT = 40


def look(suite, share):
    """`share` is the command that gives a program a share. All functions that the driver has must be found under it;
    answers what is wrong."""
    names = exported(share, "libcuda.so.1")
    wrong = by_the_loader(suite, share, "libcuda.so.1", "exports", names)
    wrong += by_the_loader(suite, share, "libnvidia-ml.so.1", "nvml_exports", exported(share, "libnvidia-ml.so.1"))
    if "cuGetProcAddress_v2" in names:
        wrong += by_the_driver(suite, share, sorted({base_name(name) for name in names}))
    else:
        suite.record.note("lookups: skipped, the driver has no cuGetProcAddress_v2")
    return wrong


def exported(share, library):
    """What the driver's own library exports, as it lies beside the shims."""
    said = subprocess.run([*share, "cat", f"/dev/gpool/real/{library}"], capture_output=True, timeout=60)
    names = exported_functions(said.stdout)
    if not names:
        raise TenantError(f"the driver's own {library} exports nothing: {said.stderr[-300:]!r}")
    return names


def by_the_loader(suite, share, library, figure, names):
    missing = answer(share, BY_THE_LOADER, library, names)
    suite.record.figure(f"environment.{figure}", len(names), "names", detail={"missing": missing})
    suite.record.figure(f"environment.{figure}_missing", len(missing), "names", aim="<= 0")
    return [f"{len(missing)} names of {library} are not found"] if missing else []


def by_the_driver(suite, share, names):
    plain, shared = (answer(command, BY_THE_DRIVER, "libcuda.so.1", names) for command in ([], share))
    found = {tuple(its) for its in shared}
    missing = [its for its in plain if tuple(its) not in found]
    record, detail = suite.record, {"missing": missing[:KEPT]}
    record.figure("environment.lookups", len(plain), "lookups", detail={"names": len(names)})
    record.figure("environment.lookups_missing", len(missing), "lookups", aim="<= 0", detail=detail)
    return [f"{len(missing)} lookups by cuGetProcAddress find nothing"] if missing else []


def base_name(name):
    """`cuMemAlloc_v2_ptds` is `cuMemAlloc`: what a program gives to cuGetProcAddress."""
    return re.sub(r"_v[0-9]+$", "", re.sub(r"_pt(sz|ds)$", "", name))


def answer(command, program, library, names):
    """What `program` prints of `names`, run by `command`."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(names, file)
        file.flush()
        env = {**os.environ, **({} if command else plain_env())}
        said = subprocess.run([*command, sys.executable, "-c", program, library, file.name], capture_output=True,
                              text=True, timeout=60, cwd=SUITE, env=env)
    if said.returncode != 0:
        raise TenantError(f"the names of {library} cannot be looked up: {said.stderr[-300:]}")
    return json.loads(said.stdout)
