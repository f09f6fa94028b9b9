"""The bound on connections, kept below what the system allows."""

from __future__ import annotations

import resource

import pytest
from structlog.testing import capture_logs

from gateway.open_files import RESERVED_FILES, connections_that_fit


class Limits:
    """The system's limit on open files, as this process sees it."""

    def __init__(self, soft: int, hard: int) -> None:
        self.now = (soft, hard)

    def get(self, _: int) -> tuple[int, int]:
        return self.now

    def set(self, _: int, limits: tuple[int, int]) -> None:
        self.now = limits


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Limits:
    limits = Limits(1024, 4096)
    monkeypatch.setattr("gateway.open_files.resource.getrlimit", limits.get)
    monkeypatch.setattr("gateway.open_files.resource.setrlimit", limits.set)
    return limits


def test_what_fits_changes_nothing(limits: Limits) -> None:
    """No process should ask for more than it needs."""
    assert connections_that_fit(500) == 500
    assert limits.now == (1024, 4096)


def test_the_soft_limit_is_raised_as_far_as_needed(limits: Limits) -> None:
    """Most systems start processes with 1024, and let them have more."""
    assert connections_that_fit(2000) == 2000
    assert limits.now == (2000 + RESERVED_FILES, 4096)


def test_beyond_the_hard_limit_the_bound_is_lowered_and_the_log_says_so(limits: Limits) -> None:
    """A gateway without descriptors could neither serve nor refuse."""
    with capture_logs() as logs:
        assert connections_that_fit(10_000) == 4096 - RESERVED_FILES
    assert limits.now == (4096, 4096)
    assert [line["log_level"] for line in logs] == ["warning"]


def test_without_a_limit_there_is_nothing_to_do(limits: Limits) -> None:
    """Some systems have none."""
    limits.now = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    assert connections_that_fit(100_000) == 100_000
