"""What a run that went wrong is explained by: what this machine lets root do, and where its driver lies."""

import glob
import os
import shutil
import subprocess
import sys

# Prints where the loader finds the driver's library, as any program would be served, and what that answers to cuInit. It is
# the first to start the driver: on a machine without udev that makes the device nodes, which a share can have then.
FIND = """
import ctypes
library = ctypes.CDLL("libcuda.so.1")
print(next(line.split()[-1] for line in open("/proc/self/maps") if "/libcuda.so" in line))
print(library.cuInit(0))
"""
# Which processors are threads of the same core, as a list of numbers and ranges; see cpu-topology of the kernel's manual.
SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def facts():
    """Texts by name; what cannot be read says why."""
    (libcuda, answer), core = loaded_libcuda(), own_core()
    status = [line for line in lines("/proc/self/status") if line.startswith(("CapEff", "Seccomp", "NoNewPrivs"))]
    mounts = [line for line in lines("/proc/self/mountinfo") if any(word in line for word in (" / / ", "cgroup", "nvidia", "overlay"))]
    return {
        "user": os.geteuid(), "rights": status, "cgroup": lines("/proc/self/cgroup"), "mounts": mounts[:60],
        "filesystems": [line.split()[-1] for line in lines("/proc/filesystems")],
        "nodes": sorted(glob.glob("/dev/nvidia*") + glob.glob("/dev/nvidia-caps/*")),
        "driver": lines("/proc/driver/nvidia/version"), "libcuda": libcuda, "cuInit": answer,
        "namespaces": [link(f"/proc/self/ns/{name}") for name in ("pid", "mnt", "user")],
        "programs": {name: which(name) for name in ("nvidia-smi", "nvidia-cuda-mps-control", "runc", "gcc", "nvcc")},
        "python": sys.executable, "memory": lines("/proc/meminfo")[:3],
        "core": core, "thread_siblings": lines(SIBLINGS.format(core)),
    }


def own_core():
    """The processor on which costs are measured: the last one."""
    return max(os.sched_getaffinity(0))


def thread_siblings(core):
    """The processors that are threads of the same core, itself among them, such as [3, 11] of "3,11"; none where that is not
    told."""
    siblings = []
    for part in "".join(lines(SIBLINGS.format(core))[:1]).split(","):
        first, _, last = part.partition("-")
        if not (first.isdigit() and (last or first).isdigit()):
            return []
        siblings += range(int(first), int(last or first) + 1)
    return siblings


def lines(path):
    try:
        with open(path, errors="replace") as file:
            return [line.rstrip() for line in file]
    except OSError as error:
        return [str(error)]


def link(path):
    try:
        return os.readlink(path)
    except OSError as error:
        return str(error)


def which(name):
    return shutil.which(name)


def loaded_libcuda():
    """The file that a program gets which asks for libcuda.so.1, and its answer to cuInit; none where there is none."""
    try:
        said = subprocess.run([sys.executable, "-c", FIND], capture_output=True, text=True, timeout=60).stdout.splitlines()
    except (OSError, subprocess.SubprocessError) as error:
        return None, str(error)
    return said[0] if said else None, said[1] if len(said) > 1 else None
