"""``sluicegate simulate --arrivals``: when the requests of a trace arrive, if not as its file says."""

from __future__ import annotations

import math
import random
import re

from admission.classes import SECOND_US
from gateway.simulate_errors import OptionError

_POISSON = re.compile(r"poisson:([0-9]{1,9}(?:\.[0-9]{1,9})?)(?:,seed=([0-9]{1,9}))?")

LEAST_RATE = 0.000001


def draw_arrivals(text: str, num_requests: int) -> list[int]:
    """Times for so many requests, in microseconds, the first at 0: the same ones for the same text."""
    if text == "burst":
        return [0] * num_requests
    found = _POISSON.fullmatch(text)
    if found is None or float(found[1]) < LEAST_RATE:
        raise OptionError(f"--arrivals {text}: must be burst or poisson:RATE[,seed=N], RATE in requests per second")
    chance = random.Random(int(found[2] or 0))  # noqa: S311 (a workload that can be repeated, no secret)
    times_us, now_s = [], 0.0
    for _ in range(num_requests):
        times_us.append(math.floor(now_s * SECOND_US))
        now_s += chance.expovariate(float(found[1]))
    return times_us
