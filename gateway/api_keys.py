"""Who may ask, on whose account, up to which class, and how much at once.

A request shows its key as ``Authorization: Bearer KEY``. Without configured keys the gateway is open: everybody may ask
for everything, on nobody's account.

What is kept of a key is its SHA-256. That of a shown one is compared with all of them, each in constant time and none
skipped, so the time that an answer takes tells nothing about them.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import structlog

from admission.classes import PriorityClass
from gateway.clock import Clock, monotonic_us
from gateway.errors import Reason, Refused
from gateway.forecast import retry_after_s
from gateway.key_file import ApiKey

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Whose request it is. ``key`` is None at an open gateway."""

    key: ApiKey | None = None

    @property
    def tenant(self) -> str:
        """Empty when nobody is known."""
        return "" if self.key is None else self.key.tenant

    def clamp(self, cls: PriorityClass) -> PriorityClass:
        """``cls``, or the best class that the caller may use when that is a lesser one."""
        ceiling = None if self.key is None else self.key.ceiling
        return cls if ceiling is None or cls.rank >= ceiling.rank else ceiling


ANYBODY = Caller()

NEWEST_WEIGHT = 0.1
"""Of the last request in the mean duration: some ten requests back count."""


@dataclass(slots=True)
class _Usage:
    """The requests of one key at this gateway, now and lately."""

    num_open: int = 0
    mean_s: float | None = None

    def end(self, took_s: float) -> None:
        self.num_open -= 1
        self.mean_s = took_s if self.mean_s is None else self.mean_s + NEWEST_WEIGHT * (took_s - self.mean_s)

    def next_end_s(self) -> float | None:
        """When one of them may end: they began at different times, so much sooner than one takes."""
        return None if self.mean_s is None else self.mean_s / max(1, self.num_open)


class ApiKeys:
    """The keys in force. ``load`` reads them; None: there are no keys, the gateway is open."""

    def __init__(self, load: Callable[[], Sequence[ApiKey]] | None = None, *, clock: Clock = monotonic_us) -> None:
        """Raises ``ValueError`` when they cannot be read."""
        self._load = load
        self._keys: Sequence[ApiKey] = () if load is None else load()
        self._clock = clock
        self._usage: dict[str, _Usage] = {}  # by name, so that a reload changes nothing of it

    @property
    def num_open(self) -> int:
        """Requests of known callers now."""
        return sum([usage.num_open for usage in self._usage.values()])

    @property
    def are_configured(self) -> bool:
        return self._load is not None

    def reload(self) -> None:
        """Take the keys as they are now. When they cannot be read, those in force stay, and the log says so."""
        if self._load is None:
            return
        try:
            self._keys = self._load()
        except ValueError as error:
            log.error("API keys not reloaded, the old ones stay in force", reason=str(error))
        else:
            names = {key.name for key in self._keys}
            self._usage = {name: usage for name, usage in self._usage.items() if usage.num_open or name in names}
            log.info("API keys reloaded", keys=len(self._keys))

    def identify(self, *authorization: str) -> Caller:
        """Who shows this header. Raises ``Refused`` when it is nobody known, or the header comes twice."""
        if not self.are_configured:
            return ANYBODY
        if len(authorization) > 1:  # a proxy before this might have looked at the other one
            raise Refused(Reason.INVALID_API_KEY, "More than one API key is shown.")
        scheme, _, shown = "".join(authorization).strip().partition(" ")
        if scheme.lower() != "bearer" or not shown:
            raise Refused(Reason.INVALID_API_KEY, "An API key is needed, as 'Authorization: Bearer KEY'.")
        digest = hashlib.sha256(shown.strip().encode("utf-8", "surrogateescape")).digest()
        found = [key for key in self._keys if hmac.compare_digest(key.digest, digest)]
        if not found:
            raise Refused(Reason.INVALID_API_KEY, "The API key is not known here.")
        return Caller(key=found[0])

    @contextmanager
    def admitted(self, caller: Caller) -> Iterator[None]:
        """One request of the caller, until the end of the block. Raises ``Refused`` when it has too many already."""
        key = caller.key
        if key is None:
            yield
            return
        usage = self._usage.setdefault(key.name, _Usage())
        if key.max_concurrent is not None and usage.num_open >= key.max_concurrent:
            message = f"This API key may have {key.max_concurrent} requests at once."
            raise Refused(Reason.TENANT_LIMIT, message, retry_after_s=retry_after_s(usage.next_end_s()))
        usage.num_open += 1
        begun_us = self._clock()
        try:
            yield
        finally:
            usage.end((self._clock() - begun_us) / 1_000_000)
