"""Who may ask, on whose account, up to which class, and how much at once.

A request shows its key as ``Authorization: Bearer KEY``. Without configured keys the gateway is open: everybody may ask
for everything, on nobody's account.

What is kept of a key is its SHA-256. That of a shown one is compared with all of them, each in constant time and none
skipped, so the time that an answer takes tells nothing about them.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import structlog

from admission.classes import PriorityClass
from gateway.errors import Reason, Refused
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


class ApiKeys:
    """The keys in force. ``load`` reads them; None: there are no keys, the gateway is open."""

    def __init__(self, load: Callable[[], Sequence[ApiKey]] | None = None) -> None:
        """Raises ``ValueError`` when they cannot be read."""
        self._load = load
        self._keys: Sequence[ApiKey] = () if load is None else load()
        self._open_requests: Counter[str] = Counter()  # by name, so that a reload changes nothing of it

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
            log.info("API keys reloaded", keys=len(self._keys))

    def identify(self, authorization: str | None) -> Caller:
        """Who shows this header. Raises ``Refused`` when it is nobody known."""
        if not self.are_configured:
            return ANYBODY
        scheme, _, shown = (authorization or "").strip().partition(" ")
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
        if key.max_concurrent is not None and self._open_requests[key.name] >= key.max_concurrent:
            message = f"This API key may have {key.max_concurrent} requests at once."
            raise Refused(Reason.TENANT_LIMIT, message)
        self._open_requests[key.name] += 1
        try:
            yield
        finally:
            self._open_requests[key.name] -= 1
            if self._open_requests[key.name] == 0:
                del self._open_requests[key.name]
