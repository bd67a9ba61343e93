"""What the device is like while a stage runs: clock, power, temperature, and why the clock is not higher."""

import statistics
import threading
import time

from .deadline import DEADLINE

# Between two looks, and until the last one has ended.
PERIOD_S, END_PATIENCE_S = 0.25, 5


class Watch:
    """Looks from a thread of its own; use it with `with`."""

    def __init__(self, nvml):
        self.nvml, self.looks, self.ended = nvml, [], threading.Event()
        self.thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        # A call of the driver that does not return must not hold up the suite.
        self.thread.join(DEADLINE.patience(END_PATIENCE_S))

    def _look(self):
        nvml = self.nvml
        while not self.ended.wait(PERIOD_S):
            seen = nvml.clock_mhz(), nvml.milliwatts(), nvml.celsius(), nvml.clock_reasons()
            self.looks.append((*seen, time.monotonic()))

    def clock_mhz(self, begin_s, end_s):
        """The median between two moments of the monotonic clock, or None."""
        clocks = [look[0] for look in list(self.looks) if begin_s <= look[-1] <= end_s and look[0] is not None]
        return statistics.median(clocks) if clocks else None

    def seen(self):
        """What was told at all, or None."""
        told = lambda at: [look[at] for look in list(self.looks) if look[at] is not None]
        clocks, powers, temperatures, reasons = (told(at) for at in range(4))
        seen = {
            "clock_mhz": [min(clocks), statistics.median(clocks), max(clocks)] if clocks else None,
            "watts": statistics.median(powers) / 1000 if powers else None,
            "celsius": max(temperatures) if temperatures else None,
            "reasons": [hex(mask) for mask in sorted(set(reasons))] if reasons else None,
        }
        return {name: value for name, value in seen.items() if value is not None} or None
