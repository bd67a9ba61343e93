"""Holds all places of its lease, and writes into each again and again that another process has come, as often as that is
heard. Record locks of another process stand in front of its own, so that it takes long to find out who holds a place."""

import fcntl
import os
import struct
import sys
import time

PLACES, PLACE_BYTES = 64, 2048
report = os.open("/dev/gpool/report", os.O_RDWR)
bell = os.open("/dev/gpool/bell", os.O_RDWR | os.O_NONBLOCK)
# From the last one to the first: each is put in front of the others.
for lock in range(int(sys.argv[1]), 0, -1):
    fcntl.lockf(report, fcntl.LOCK_EX, 1, 1 << 30 | 2 * lock)
child = os.fork()
if child != 0:
    os.waitpid(child, 0)
    sys.exit("the other process has ended")
for place in range(PLACES):
    fcntl.lockf(report, fcntl.LOCK_EX, 1, place * PLACE_BYTES)
print("registers", flush=True)
number = time.monotonic_ns() | 1
while True:
    number += 2
    for place in range(PLACES):
        os.pwrite(report, struct.pack("<Q", number), place * PLACE_BYTES)
    try:
        os.write(bell, bytes([PLACES - 1]))
    except BlockingIOError:
        pass
    time.sleep(0.05)
