"""The random number of a token, a function of where it stands and nothing else."""

from __future__ import annotations

from workers.randomness import uniform


def test_the_numbers_are_what_they_always_were() -> None:
    """A seeded answer given today must be given again after an upgrade."""
    assert [uniform(0, 0, 0), uniform(1, 0, 0), uniform(0, 1, 0), uniform(0, 0, 1)] == [
        0.13870941014555427,
        0.6935121390102292,
        0.2691303195904541,
        0.18436667429957676,
    ]


def test_seeds_choices_and_positions_each_count() -> None:
    """Exchanging two of them must not give the same number."""
    numbers = {uniform(*triple) for triple in ((1, 2, 3), (1, 3, 2), (2, 1, 3), (2, 3, 1), (3, 1, 2), (3, 2, 1))}
    assert len(numbers) == 6


def test_numbers_are_spread_evenly_over_the_unit_interval() -> None:
    """Successive positions are the commonest use: each tenth gets its tenth."""
    tenths = [0] * 10
    for position in range(10_000):
        tenths[int(uniform(123, 0, position) * 10)] += 1
    assert min(tenths) > 900
    assert max(tenths) < 1100


def test_any_seed_that_the_wire_carries_will_do() -> None:
    """Negative and very large seeds included."""
    for seed in (-1, -(2**63), 2**63 - 1, 2**64 - 1):
        assert 0.0 <= uniform(seed, 0, 0) < 1.0
