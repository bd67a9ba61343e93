#!/usr/bin/python3
"""Stands in for the hooks of NVIDIA's container toolkit (nvidia-cdi-hook), of which nothing is run here. It is called in the
container's mount namespace with the container's state on its standard input, as the OCI specification has it.

    nvidia-cdi-hook create-symlinks --link TARGET::PATH ...
    nvidia-cdi-hook create-soname-symlinks --folder FOLDER ...
    nvidia-cdi-hook update-ldcache --folder FOLDER ...

As there, a link is made under another name and renamed into place, and the others are made by ldconfig.
"""

import json
import os
import subprocess
import sys


def values(arguments, option):
    return [arguments[index + 1] for index, word in enumerate(arguments) if word == option]


def link(target, path):
    if os.path.islink(path) and os.readlink(path) == target:
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    aside = f"{path}.tmp-link"
    os.symlink(target, aside)
    os.rename(aside, path)


def main():
    bundle = json.load(sys.stdin)["bundle"]
    with open(os.path.join(bundle, "config.json"), encoding="utf-8") as text:
        root = os.path.join(bundle, json.load(text)["root"]["path"])
    verb, arguments = sys.argv[1], sys.argv[2:]
    if verb == "create-symlinks":
        for target, path in (value.split("::") for value in values(arguments, "--link")):
            link(target, root + path)
    elif verb == "create-soname-symlinks":
        subprocess.run(["/sbin/ldconfig", "-r", root, "-n", "-N", *values(arguments, "--folder")], check=True)
    elif verb == "update-ldcache":
        subprocess.run(["/sbin/ldconfig", "-r", root], check=True)


main()
