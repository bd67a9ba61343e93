#!/usr/bin/env python3
"""Stands in for NVIDIA's container toolkit, of which nothing is run here: it makes the edits to a container's config.json
that the toolkit, or an engine that knows CDI devices, makes, and hands over to the next runtime.

    toolkit_stand_in.py SIMULATED_GPU HOOK NEXT ARGUMENTS...

What it does the container's variable STAND_IN says: "cdi" adds all GPUs as the edits of `nvidia.com/gpu=all` do on a host with
MIG instances, "cdi-whole" on one without, "legacy" what `docker --gpus all` adds without CDI. Without the variable it behaves as nvidia-container-runtime does: nothing where
the last NVIDIA_VISIBLE_DEVICES is "void" or missing, else the edits of CDI.
"""

import json
import os
import sys

LIBRARY_DIR = "/usr/lib/x86_64-linux-gnu"


def bundle_of(arguments):
    for index, argument in enumerate(arguments):
        if argument in ("--bundle", "-b"):
            return arguments[index + 1]
        if argument.startswith("--bundle="):
            return argument.split("=", 1)[1]
    return "."


def last(env, name):
    values = [entry.split("=", 1)[1] for entry in env if entry.startswith(name + "=")]
    return values[-1] if values else None


def add_cdi(spec, gpu, hook, instances):
    linux, env = spec["linux"], spec["process"]["env"]
    rules = linux.setdefault("resources", {}).setdefault("devices", [])
    for name in sorted(os.listdir(f"{gpu}/dev")):
        if not name.startswith("nvidia") or not os.path.exists(f"{gpu}/dev/{name}") or os.path.isdir(f"{gpu}/dev/{name}"):
            continue
        number = os.stat(f"{gpu}/dev/{name}").st_rdev
        major, minor = os.major(number), os.minor(number)
        linux.setdefault("devices", []).append(
            {"path": f"/dev/{name}", "type": "c", "major": major, "minor": minor, "fileMode": 0o666, "uid": 0, "gid": 0}
        )
        rules.append({"allow": True, "type": "c", "major": major, "minor": minor, "access": "rwm"})
    # Nodes of other instances and of other hosts' memory, under numbers that no lease has.
    others = [("nvidia-caps/nvidia-cap3", 507, 3)] if instances else []
    for path, major, minor in (*others, ("nvidia-caps-imex-channels/channel0", 506, 0)):
        linux["devices"].append(
            {"path": f"/dev/{path}", "type": "c", "major": major, "minor": minor, "fileMode": 0o666, "uid": 0, "gid": 0}
        )
        rules.append({"allow": True, "type": "c", "major": major, "minor": minor, "access": "rwm"})
    options = ["ro", "nosuid", "nodev", "rbind", "rprivate"]
    for name in ("libcuda.so", "libnvidia-ml.so"):
        destination = f"{LIBRARY_DIR}/{name}.580.95.05"
        spec["mounts"].append(
            {"source": f"{gpu}/lib/{name}.1", "destination": destination, "type": "bind", "options": options}
        )
    # The simulated driver's counterpart of the kernel's.
    spec["mounts"].append(
        {"source": f"{gpu}/state", "destination": f"{gpu}/state", "type": "bind", "options": ["rbind", "rw"]}
    )
    env.append("NVIDIA_VISIBLE_DEVICES=void")
    hooks = spec.setdefault("hooks", {}).setdefault("createContainer", [])
    links = ("libcuda.so.1::{}/libcuda.so", "../libnvidia-allocator.so.1::{}/gbm/nvidia-drm_gbm.so")
    words = [word for link in links for word in ("--link", link.format(LIBRARY_DIR))]
    hooks.append({"path": hook, "args": ["nvidia-cdi-hook", "create-symlinks", *words]})
    # The second one since 1.18; before, the third made those links as well.
    for verb in ("create-soname-symlinks", "update-ldcache"):
        hooks.append({"path": hook, "args": ["nvidia-cdi-hook", verb, "--folder", LIBRARY_DIR]})


def add_legacy(spec):
    spec["process"]["env"].append("NVIDIA_VISIBLE_DEVICES=all")
    path = "/usr/bin/nvidia-container-runtime-hook"
    spec.setdefault("hooks", {}).setdefault("prestart", []).append({"path": path, "args": [path, "prestart"]})


def edit(file, gpu, hook):
    with open(file, encoding="utf-8") as text:
        spec = json.load(text)
    env = spec["process"]["env"]
    kind = last(env, "STAND_IN")
    if kind is None:
        kind = "nothing" if last(env, "NVIDIA_VISIBLE_DEVICES") in (None, "", "void") else "cdi"
    if kind in ("cdi", "cdi-whole"):
        add_cdi(spec, gpu, hook, kind == "cdi")
    elif kind == "legacy":
        add_legacy(spec)
    with open(file, "w", encoding="utf-8") as text:
        json.dump(spec, text)


def main():
    gpu, hook, following, *arguments = sys.argv[1:]
    if "create" in arguments:
        edit(os.path.join(bundle_of(arguments), "config.json"), gpu, hook)
    os.execv(following, [following, *arguments])


main()
