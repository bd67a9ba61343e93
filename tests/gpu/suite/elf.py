"""The functions that a shared library exports, read from its dynamic symbol table (elf(5))."""

import struct

FUNCTION, INDIRECT = 2, 10
DYNAMIC_SYMBOLS = 11


def exported_functions(image):
    """Names of all functions that are defined in `image`, the bytes of a 64-bit little-endian ELF file; sorted."""
    if image[:6] != b"\x7fELF\x02\x01":
        return []
    offset = struct.unpack_from("<Q", image, 40)[0]
    size, count = struct.unpack_from("<HH", image, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", image, offset + index * size) for index in range(count)]
    names = set()
    for section in sections:
        if section[1] != DYNAMIC_SYMBOLS:
            continue
        strings = sections[section[6]][4]
        for at in range(section[4], section[4] + section[5], 24):
            name, info, _, home, _, _ = struct.unpack_from("<IBBHQQ", image, at)
            if home != 0 and info & 15 in (FUNCTION, INDIRECT):
                end = image.index(b"\0", strings + name)
                names.add(image[strings + name:end].decode())
    return sorted(names)
