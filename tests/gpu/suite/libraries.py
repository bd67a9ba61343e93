"""Which driver a process computes by: the driver's own, or gpool's shim with the driver's behind it. What is measured under
a share must have the shim, and its control must not, or the comparison is of nothing."""

import json
import mmap
import os
import struct
import sys

# Where the driver's own library lies for who has the shim.
BEHIND_A_SHIM = "/dev/gpool/real/"
# The line of programs on their standard error that tells what they have mapped.
TOLD = "libraries: "


def build_id(path):
    """The GNU build id of an ELF file, or None: section headers may be stripped, so the notes' segments are read."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as image:
        if image[:5] != b"\x7fELF\x02":
            return None
        offset, size, count = (*struct.unpack_from("<Q", image, 32), *struct.unpack_from("<HH", image, 54))
        for index in range(count):
            kind, _, start, _, _, length = struct.unpack_from("<IIQQQQ", image, offset + index * size)
            if kind != 4:  # PT_NOTE
                continue
            at, end = start, start + length
            while at + 12 <= end:
                name, words, note = struct.unpack_from("<III", image, at)
                body = at + 12 + (name + 3) // 4 * 4
                if note == 3 and image[at + 12:at + 16] == b"GNU\0":
                    return image[body:body + words].hex()
                at = body + (words + 3) // 4 * 4
    return None


def mapped(name="libcuda.so"):
    """The files called `name` that this process has mapped, with their build ids."""
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if name in line.rsplit("/", 1)[-1]}
    return {path: build_id(path) for path in sorted(paths) if os.path.exists(path)}


def tell():
    """For programs whose standard output is compared."""
    print(TOLD + json.dumps(mapped()), file=sys.stderr, flush=True)


def told(stderr):
    """What a program that has ended said by `tell`; nothing if it did not."""
    lines = [line for line in stderr.splitlines() if line.startswith(TOLD)]
    return json.loads(lines[-1].removeprefix(TOLD)) if lines else {}


def wrong(libraries, wants_shim, shims=None):
    """What is wrong with the libraries that a process has, or None. `shims` are the build ids that count, any if None."""
    if not libraries:
        return "it has no libcuda.so"
    has_shim = any(path.startswith(BEHIND_A_SHIM) for path in libraries)
    if wants_shim and not has_shim:
        return f"it has a share and no shim: {libraries}"
    if wants_shim and shims is not None and not shims & set(libraries.values()):
        return f"it has none of the shims {sorted(shims)}: {libraries}"
    if not wants_shim and has_shim:
        return f"it is to be without a shim and has one: {libraries}"
    return None
