"""The random number of a token: a pure function of (seed, choice, output position).

No generator has state, so a sequence that moves to another worker, is preempted, or shares its batch with others draws
the very numbers that it would have drawn alone. Plain integers: this runs once per sampled token, on the host, and is
the same on every machine and in every version of every library.
"""

from __future__ import annotations

_MASK = (1 << 64) - 1


def uniform(seed: int, choice: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits for output token ``position`` of ``choice``."""
    state = _scramble(seed)
    state = _scramble(state ^ choice)
    state = _scramble(state ^ position)
    return (state >> 11) * 2.0**-53


def _scramble(value: int) -> int:
    """One round of SplitMix64 (Steele, Lea and Flood 2014): every input bit changes about half of the output bits."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
