"""The Lua acts as typed calls. One file per act in ``lua/``; its header declares purpose, KEYS, ARGV and result.

The text of an act on the queue is the constants, then the parts that the acts share, then its own file. It is sent by
digest; a Redis that does not know the digest (new, or flushed) gets the text.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import redis.asyncio
from redis.exceptions import NoScriptError

from admission.keys import MARK_TTL_MS, QUEUE_TTL_MS, WANT_LEASE_US, QueueKeys
from admission.queue import (
    LOOK_AHEAD,
    MAX_SHED,
    Asked,
    Claim,
    ClassRule,
    Entry,
    NoObserver,
    Offered,
    OfferResult,
    QueueBounds,
    QueueObserver,
    Shed,
    Withdrawal,
    Withdrawn,
)
from admission.standing import COMMON_LANE, FixedScore, HeadStart, Standing

Argument = str | int | bytes

_PARTS = ("_entries", "_lanes", "_lines", "_bounds", "_drivers", "_wants")

_ACTS = ("offer", "claim", "collect", "withdraw", "settle", "give_back", "forget_driver", "reconcile")

NUMBERED = frozenset({"offer", "claim", "collect", "withdraw", "settle", "give_back", "forget_driver"})
"""Acts that have a number among all on their queue, which their result begins with."""

_NUMBER_AFTER = """
end
local result = act()
return {act_number(), result}
"""

_CONSTANTS = f"""\
local QUEUE_TTL_MS = {QUEUE_TTL_MS}
local MARK_TTL_MS = {MARK_TTL_MS}
local WANT_LEASE_US = {WANT_LEASE_US}
local LOOK_AHEAD = {LOOK_AHEAD}
local MAX_SHED = {MAX_SHED}
local COMMON_LANE = '{COMMON_LANE}'
"""

_HEADER = re.compile(
    r"\A-- (?P<name>\w+): .*?^-- KEYS (?P<num_keys>\d+):.*?^-- ARGV: .*?^-- Result: ", re.DOTALL | re.MULTILINE
)


class ScriptError(Exception):
    """A script does not declare what it must; raised when it is loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """One act: its whole text, and the digest by which Redis knows it."""

    name: str
    text: str
    digest: str


def load_script(name: str, *, num_keys: int, before: str = "", is_numbered: bool = False) -> Script:
    """``lua/{name}.lua``, after the text ``before``; if numbered, its result is {number, result}.

    Raises ``ScriptError`` unless its header declares name and keys.
    """
    body = _read(name)
    header = _HEADER.match(body)
    if header is None or header["name"] != name:
        raise ScriptError(f"lua/{name}.lua does not open with its name, KEYS, ARGV and Result")
    if int(header["num_keys"]) != num_keys:
        raise ScriptError(f"lua/{name}.lua declares {header['num_keys']} keys, {num_keys} are passed")
    text = f"{before}local function act()\n{body}{_NUMBER_AFTER}" if is_numbered else before + body
    digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()  # how Redis names scripts
    return Script(name=name, text=text, digest=digest)


async def run_script(client: redis.asyncio.Redis, script: Script, keys: Sequence[str], *arguments: Argument) -> Any:
    """Its reply, as redis-py gives it."""
    try:
        return await client.evalsha(script.digest, len(keys), *keys, *arguments)
    except NoScriptError:  # nothing has run: the text is sent in its place
        return await client.eval(script.text, len(keys), *keys, *arguments)


class QueueScripts:
    """The acts on one model's queue. They raise what redis-py raises; time comes from ``clock`` only in tests."""

    def __init__(
        self,
        client: redis.asyncio.Redis,
        *,
        keys: QueueKeys,
        bounds: QueueBounds,
        clock_us: Callable[[], int] | None = None,
        observer: QueueObserver | None = None,
    ) -> None:
        self._client = client
        self._bounds = bounds
        self._clock_us = clock_us
        self._keys = keys.in_order()
        before = "".join([_CONSTANTS, *(_read(part) for part in _PARTS)])
        self._observer = observer or NoObserver()
        self._scripts = {
            name: load_script(name, num_keys=len(self._keys), before=before, is_numbered=name in NUMBERED)
            for name in _ACTS
        }

    async def offer(self, entries: Sequence[Entry], bounds: QueueBounds | None, rule: ClassRule) -> OfferResult:
        """Within ``bounds``; None: past them."""
        act, reply = await self._act(
            "offer",
            *_limits(bounds),
            _or_empty(rule.max_requests),
            _or_empty(rule.max_tokens),
            "sheds" if rule.sheds else "",
            "may be shed" if rule.may_be_shed else "",
            "preempts" if rule.preempts else "",
            *(argument for entry in entries for argument in _offered(entry)),
        )
        position, requests, tokens, *rest = reply
        outcomes, shed = rest[: len(entries)], rest[len(entries) :]
        result = OfferResult(
            outcomes=tuple(Offered(outcome.decode()) for outcome in outcomes),
            position=int(position),
            waiting_requests=int(requests),
            waiting_tokens=int(tokens),
            shed=tuple(
                Shed(entry_id=entry_id.decode(), origin=origin.decode())
                for entry_id, origin in zip(shed[::2], shed[1::2], strict=True)
            ),
        )
        self._observer.offered(act, entries, result)
        return result

    async def claim(self, driver_id: str, asked: Asked, received: Sequence[str]) -> tuple[Claim, ...]:
        weakest = asked.weakest
        short = [(name, slots) for name, slots in asked.short if slots > 0]
        act, rows = await self._act(
            "claim",
            driver_id,
            asked.slots,
            _or_empty(asked.kv_tokens),
            *((weakest.sequence_id, weakest.rank, weakest.score) if weakest else ("", "", "")),
            len(short),
            *(argument for shortage in short for argument in shortage),
            *received,
        )
        return self._given(act, driver_id, rows)

    async def collect(self, driver_id: str, received: Sequence[str]) -> tuple[Claim, ...]:
        act, rows = await self._act("collect", driver_id, *received)
        return self._given(act, driver_id, rows)

    async def withdraw(self, entry_id: str) -> Withdrawal:
        act, (outcome, driver_id) = await self._act("withdraw", entry_id)
        withdrawal = Withdrawal(outcome=Withdrawn(outcome.decode()), driver_id=driver_id.decode() or None)
        self._observer.withdrew(act, entry_id, withdrawal)
        return withdrawal

    async def settle(self, driver_id: str, entry_ids: Sequence[str]) -> None:
        act, _ = await self._act("settle", driver_id, *entry_ids)
        self._observer.settled(act, driver_id, entry_ids)

    async def give_back(self, driver_id: str, entry_ids: Sequence[str]) -> None:
        act, _ = await self._act("give_back", driver_id, *entry_ids)
        self._observer.returned(act, driver_id, entry_ids)

    async def forget_driver(self, driver_id: str, received: Sequence[str]) -> None:
        await self._forget(driver_id, "", *received)

    async def forget_silent_driver(self, driver_id: str, beat: str) -> bool:
        """Forget a driver that was last heard of at ``beat``; False: it has been heard of since."""
        return await self._forget(driver_id, beat)

    async def _forget(self, driver_id: str, *arguments: str) -> bool:
        act, (outcome, waiting) = await self._act("forget_driver", driver_id, *arguments)
        is_forgotten = bool(outcome == b"forgotten")
        if is_forgotten:
            self._observer.forgot(act, driver_id, tuple([entry_id.decode() for entry_id in waiting]))
        return is_forgotten

    async def reconcile(self) -> bool:
        """Whether the queue was whole; else it has begun anew."""
        return bool(await self._run("reconcile") == b"whole")

    async def _act(self, name: str, *arguments: Argument) -> tuple[int, Any]:
        """The number of the act, and its result."""
        number, result = await self._run(name, *arguments)
        return int(number), result

    def _given(self, act: int, driver_id: str, rows: Sequence[list[bytes]]) -> tuple[Claim, ...]:
        claims = tuple(_claim(row) for row in rows)
        self._observer.given(act, driver_id, claims)
        return claims

    async def _run(self, name: str, *arguments: Argument) -> Any:
        clock = self._clock_us() if self._clock_us else ""
        return await run_script(
            self._client, self._scripts[name], self._keys, clock, self._bounds.max_passes, *arguments
        )


def _read(name: str) -> str:
    return (resources.files("admission") / "lua" / f"{name}.lua").read_text()


def _or_empty(bound: int | None) -> int | str:
    return "" if bound is None else bound


def _limits(bounds: QueueBounds | None) -> tuple[int | str, int | str, int | str]:
    if bounds is None:
        return "", "", ""
    return bounds.max_requests, _or_empty(bounds.max_tokens), _or_empty(bounds.max_bytes)


def _offered(entry: Entry) -> tuple[Argument, ...]:
    return (
        entry.entry_id,
        entry.class_name,
        entry.rank,
        *_scored_by(entry.standing),
        entry.standing.lane,
        entry.standing.account,
        entry.tokens,
        entry.tenant,
        entry.origin,
        entry.payload,
    )


def _scored_by(standing: Standing) -> tuple[str, int]:
    match standing.scored_by:
        case HeadStart(us=us):
            return ("head start", us)
        case FixedScore(score=score):
            return ("fixed", score)


def _claim(row: list[bytes]) -> Claim:
    entry_id, class_name, rank, arrival, score, scored_by, lane, account, tokens, tenant, *rest = row
    origin, payload, victim_id = rest
    arrival_us, score_us = int(arrival), int(score)
    return Claim(
        entry=Entry(
            entry_id=entry_id.decode(),
            class_name=class_name.decode(),
            rank=int(rank),
            standing=Standing(
                scored_by=FixedScore(score=score_us) if scored_by == b"fixed" else HeadStart(us=arrival_us - score_us),
                lane=lane.decode(),
                account=account.decode(),
            ),
            tokens=int(tokens),
            payload=payload,
            tenant=tenant.decode(),
            origin=origin.decode(),
        ),
        arrival_us=arrival_us,
        score=score_us,
        victim_id=victim_id.decode() or None,
    )
