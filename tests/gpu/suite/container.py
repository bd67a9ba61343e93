"""A container without an engine: gpool-runtime and runc on a bundle whose root is this machine's, under a scratch layer."""

import json
import os
import shutil
import subprocess
import sys
import tempfile

from .deadline import DEADLINE

# What docker gives a container, as far as a program that computes needs it.
CAPABILITIES = ["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_KILL", "CAP_SETGID", "CAP_SETUID"]
MOUNTS = [
    ("/proc", "proc", "proc", ["nosuid", "noexec", "nodev"]),
    ("/dev", "tmpfs", "tmpfs", ["nosuid", "strictatime", "mode=755", "size=65536k"]),
    ("/dev/pts", "devpts", "devpts", ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"]),
    ("/dev/shm", "tmpfs", "shm", ["nosuid", "noexec", "nodev", "mode=1777"]),
    ("/tmp", "tmpfs", "tmpfs", ["nosuid", "nodev", "mode=1777"]),
]

# How long each step may take that takes a container away; where no time is left each has the least, so that mounts go.
ATTEMPT_S, ATTEMPT_LEAST_S = 10, 0.5


def configuration(command, directory, annotations):
    """config.json of the OCI runtime specification."""
    environment = [f"{name}={value}" for name, value in os.environ.items() if not name.startswith("GPOOL_")]
    return {
        "ociVersion": "1.0.2",
        "process": {"args": command, "cwd": directory, "env": environment, "user": {"uid": 0, "gid": 0},
                    "noNewPrivileges": True,
                    "capabilities": {name: CAPABILITIES for name in ("bounding", "effective", "permitted")}},
        "root": {"path": "rootfs"},
        "mounts": [{"destination": place, "type": kind, "source": source, "options": options}
                   for place, kind, source, options in [*MOUNTS, *folders_beside_the_root(directory)]],
        "annotations": annotations,
        "linux": {"namespaces": [{"type": name} for name in ("pid", "ipc", "uts", "mount", "network")],
                  "resources": {"devices": [{"allow": False, "access": "rwm"}]}},
    }


def folders_beside_the_root(directory):
    """Mounts of what the command needs and the root's layer does not show: Python and its folder, where they lie on
    another filesystem or below what the container has of its own."""
    # Below /usr the layer is where libraries are mounted.
    folders = {os.path.realpath(folder) for folder in (directory, sys.prefix, sys.base_prefix)} - {"/usr"}
    beside = [folder for folder in folders
              if os.stat(folder).st_dev != os.stat("/").st_dev or folder.startswith(("/tmp/", "/dev/"))]
    return [(folder, "bind", folder, ["rbind", "ro"]) for folder in sorted(beside)]


def run(command, directory, annotations, patience_s=30):
    """Runs `command` in a container; its CompletedProcess. Nothing of it stays, whatever happens."""
    folder = tempfile.mkdtemp(prefix="gpool-container-", dir="/run")
    scratch, root = os.path.join(folder, "scratch"), os.path.join(folder, "rootfs")
    try:
        os.makedirs(scratch)
        os.makedirs(root)
        subprocess.run(["mount", "-t", "tmpfs", "gpool-scratch", scratch], check=True, capture_output=True)
        for name in ("upper", "work"):
            os.makedirs(os.path.join(scratch, name))
        layers = f"lowerdir=/,upperdir={scratch}/upper,workdir={scratch}/work"
        subprocess.run(["mount", "-t", "overlay", "-o", layers, "gpool", root], check=True, capture_output=True)
        with open(os.path.join(folder, "config.json"), "w") as file:
            json.dump(configuration(command, directory, annotations), file)
        return subprocess.run(["gpool-runtime", "run", "--bundle", folder, os.path.basename(folder)],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=patience_s)
    finally:
        with DEADLINE.held_back():
            take_away(folder, [root, scratch])


def take_away(folder, mounts):
    """Ends the container of that folder, which stays where its runtime alone was killed, and removes the folder."""
    name = os.path.basename(folder)
    attempt("gpool-runtime", "kill", name, "KILL")
    attempt("gpool-runtime", "delete", "--force", name)
    for place in mounts:
        if os.path.ismount(place):
            attempt("umount", place)
        if os.path.ismount(place):
            attempt("umount", "-l", place)
    # One that is still mounted shows this machine's own files.
    if not any(os.path.ismount(place) for place in mounts):
        shutil.rmtree(folder, ignore_errors=True)


def attempt(*command):
    """Runs it for some seconds. Whether it works does not matter, and must not hide why the container ended."""
    try:
        quiet, patience_s = subprocess.DEVNULL, max(ATTEMPT_LEAST_S, DEADLINE.patience(ATTEMPT_S))
        subprocess.run(command, stdin=quiet, stdout=quiet, stderr=quiet, timeout=patience_s)
    except (OSError, subprocess.SubprocessError):
        pass
