"""A cost model fitted to the iterations of logs: non-negative least squares, exactly.

Of all cost models whose coefficients are at least 0 the one whose times differ least from the logged ones, in the sum
of squares. There are five features, so every subset of them can be tried: the best solution with all coefficients
positive over its subset is the answer (the conditions of Karush, Kuhn and Tucker say that it is among these). Sums are
of whole numbers and solved as fractions, so no rounding decides between subsets; of those that are equally good the one
with the fewest features is taken, since what did not vary cannot be told apart from ``base``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations

from admission.cost import CostModel, Work
from admission.record.course import Timed

_FEATURES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class FitError:
    """How far a cost model is from iterations: relative errors of their times, and of the time of all together.

    ``total`` is signed: above 0, the model takes longer. ``wait_share``: how much of the time the worker had waited.
    """

    num_iterations: int
    median: float
    p90: float
    total: float
    total_us: int
    wait_share: float


def fit_cost(iterations: Iterable[Timed]) -> CostModel | None:
    """The cost model of these iterations; None when there are none."""
    sums = _Sums()
    for timed in iterations:
        sums.add(_features(timed.work), timed.took_us)
    if not sums.count:
        return None
    best, best_gain = [Fraction(0)] * _FEATURES, Fraction(0)
    for subset in _subsets():
        found = sums.solve(subset)
        if found is None or min(found) < 0:
            continue
        gain = sums.gain(subset, found)
        if gain > best_gain:
            best_gain, best = gain, [Fraction(0)] * _FEATURES
            for index, value in zip(subset, found, strict=True):
                best[index] = value
    base, decode, prefill, kv, swap = best
    return CostModel(
        base_ns=round(base * 1_000),
        decode_ns=round(decode * 1_000),
        prefill_ns=round(prefill * 1_000),
        kv_ns_per_1k=round(kv * 1_000_000),
        swap_ns=round(swap * 1_000),
    )


def error_of(cost: CostModel, iterations: Sequence[Timed]) -> FitError:
    """Nearest rank, of all iterations. Raises ``ValueError`` when there are none."""
    if not iterations:
        raise ValueError("no iterations")
    predicted = [cost.iteration_us(timed.work) for timed in iterations]
    errors = sorted(
        [abs(us - timed.took_us) / max(1, timed.took_us) for us, timed in zip(predicted, iterations, strict=True)]
    )
    total_us = sum([timed.took_us for timed in iterations])
    waited_us = sum([max(0, timed.took_us - timed.busy_us) for timed in iterations])
    return FitError(
        num_iterations=len(iterations),
        median=errors[(len(errors) - 1) // 2],
        p90=errors[-(-len(errors) * 90 // 100) - 1],
        total=sum(predicted) / max(1, total_us) - 1,
        total_us=total_us,
        wait_share=waited_us / max(1, total_us),
    )


def _features(work: Work) -> tuple[int, ...]:
    """What a cost model multiplies with its coefficients; KV in tokens, copies both ways."""
    return (1, work.decode_tokens, work.prefill_tokens, work.kv_tokens, 2 * work.swapped_tokens)


def _subsets() -> Iterator[tuple[int, ...]]:
    for size in range(1, _FEATURES + 1):
        yield from combinations(range(_FEATURES), size)


class _Sums:
    """The normal equations of all features, as whole numbers."""

    def __init__(self) -> None:
        self.count = 0
        self._products = [[0] * _FEATURES for _ in range(_FEATURES)]
        self._times = [0] * _FEATURES

    def add(self, row: Sequence[int], time_us: int) -> None:
        self.count += 1
        for index, value in enumerate(row):
            if value:
                self._times[index] += value * time_us
                products = self._products[index]
                for other, factor in enumerate(row):
                    products[other] += value * factor

    def solve(self, subset: Sequence[int]) -> list[Fraction] | None:
        """The least squares over these features alone; None when they cannot be told apart. Gauss and Jordan."""
        rows = [[Fraction(self._products[i][j]) for j in subset] + [Fraction(self._times[i])] for i in subset]
        for column in range(len(rows)):
            pivot = next((row for row in rows[column:] if row[column]), None)
            if pivot is None:
                return None
            rows.remove(pivot)
            scaled = [value / pivot[column] for value in pivot]
            rows = [[value - row[column] * unit for value, unit in zip(row, scaled, strict=True)] for row in rows]
            rows.insert(column, scaled)
        return [row[-1] for row in rows]

    def gain(self, subset: Sequence[int], found: Sequence[Fraction]) -> Fraction:
        """By how much the sum of squares is less than with no feature at all."""
        return sum((value * self._times[i] for i, value in zip(subset, found, strict=True)), start=Fraction(0))
