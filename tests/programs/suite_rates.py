"""How far what the suite for a real GPU says of a ceiling is off what was let through, over windows that begin anywhere in a slice.

Prints the least and the most of it, over what was let through, and for how many windows of a tenant without slices it is something
else than what that one did.
"""

import random

from suite.worker import rate_of_slices

# A step, a slice and a window.
SHAPES = [(56e-6, 0.016, 1.1), (0.5e-3, 0.011, 1.1), (3.7e-3, 0.0148, 2.0)]
LIMITS = [0.1, 0.25, 0.5]
chance = random.Random(1)


def ends(step, slice_, period, window):
    """When steps end in a window that begins anywhere in a period. Each slice begins up to 0.3 ms late."""
    begin, found = -chance.random() * period, []
    while begin < window:
        late = begin + chance.random() * 0.0003
        found += [late + (index + 1) * step for index in range(round(slice_ / step))]
        begin += period
    return [int(end * 1e9) for end in found if 0 <= end < window]


def endless(step, window):
    """Those of one that never pauses, of which the host delays a few."""
    found, at = [], 0.0
    while at < window:
        at += step if chance.random() > 0.002 else 4 * step
        found.append(int(at * 1e9))
    return found


ratios = []
for step, slice_, window in SHAPES:
    for limit in LIMITS:
        period = round(slice_ / step) * step / limit
        ratios += [rate_of_slices(ends(step, slice_, period, window)) * step / limit for _ in range(100)]
rates = [(rate_of_slices(its), (len(its) - 1) * 1e9 / (its[-1] - its[0])) for its in (endless(56e-6, 1.1) for _ in range(50))]
wrong = sum(rate is not None and abs(rate / whole - 1) > 0.02 for rate, whole in rates)
print(min(ratios), max(ratios), wrong)
