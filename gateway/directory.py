"""The directory of the cluster, in Redis: gateways and their relays, leases on workers, models and their tokenizers.

It holds addresses and descriptions only, each with a lifetime (``admission.keys``) that its owner renews. Nothing that
runs depends on it: streams go on while Redis is away, and what ran out is written again when it is back.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from urllib.parse import quote

import orjson
import redis.asyncio
import structlog

from admission.keys import (
    GATEWAY_PREFIX,
    GATEWAY_TTL_MS,
    MODEL_PREFIX,
    MODEL_TTL_MS,
    SPEED_PREFIX,
    SPEED_TTL_MS,
    TOKENIZER_PREFIX,
    TOKENIZER_TTL_MS,
    WORKER_LEASE_TTL_MS,
    WORKER_PREFIX,
)
from admission.leases import Leases
from admission.redis_client import bounded
from gateway.forecast import DriverSpeed
from workers.wire import Message, ModelCard, TokenizerFiles, WireError, decode, encode

_FILES_TIMEOUT_S = 10.0
"""Tokenizer files are megabytes, and nobody waits for them but the first request of a model."""

MAX_MODELS = 1000
"""Cards listed at most: a bound on one reading of the directory."""

_log = structlog.get_logger(__name__)


class Directory:
    """The cluster as ``gateway_id`` sees and tells it. Every call raises ``StoreUnavailable`` when Redis is away."""

    def __init__(self, client: redis.asyncio.Redis, *, gateway_id: str) -> None:
        self._client = client
        self._gateway_key = GATEWAY_PREFIX + gateway_id
        self._leases = Leases(client, holder=gateway_id, ttl_ms=WORKER_LEASE_TTL_MS)

    # --- gateways -----------------------------------------------------------------------------------------------------

    async def announce(self, relay_address: str) -> None:
        """Tell where this gateway's relay listens; again every few seconds."""
        async with bounded("announce"):
            await self._client.set(self._gateway_key, relay_address, px=GATEWAY_TTL_MS)

    async def withdraw(self) -> None:
        """Tell that this gateway is going."""
        async with bounded("withdraw gateway"):
            await self._client.delete(self._gateway_key)

    async def relay_address(self, gateway_id: str) -> str | None:
        """Where that gateway's relay listens; None when it is gone."""
        async with bounded("relay address"):
            address = _in_bytes(await self._client.get(GATEWAY_PREFIX + gateway_id))
        return None if address is None else address.decode()

    # --- workers ------------------------------------------------------------------------------------------------------

    async def take_worker(self, worker_address: str, *, above_epoch: int = 0) -> int | None:
        """Lease the worker: an epoch greater than any before and than ``above_epoch``, or None: another holds it."""
        async with bounded("take worker"):
            return await self._leases.take(WORKER_PREFIX + worker_address, above_epoch=above_epoch)

    async def knows_worker(self, worker_address: str) -> bool:
        """Whether the worker's lease is held, or was given up lately; False: it ran out, or the store lost its data."""
        async with bounded("know worker"):
            return await self._leases.is_known(WORKER_PREFIX + worker_address)

    async def renew_worker(self, worker_address: str) -> bool:
        """Whether the lease is still ours."""
        async with bounded("renew worker"):
            return await self._leases.renew(WORKER_PREFIX + worker_address)

    async def release_worker(self, worker_address: str) -> None:
        async with bounded("release worker"):
            await self._leases.release(WORKER_PREFIX + worker_address)

    # --- speeds -------------------------------------------------------------------------------------------------------

    async def publish_speed(self, worker_address: str, speed: DriverSpeed) -> None:
        """Tell how fast the line drains through the driver of this worker; again every few seconds."""
        value = orjson.dumps([speed.model, speed.tokens_per_s])
        async with bounded("publish speed"):
            await self._client.set(SPEED_PREFIX + worker_address, value, px=SPEED_TTL_MS)

    async def speeds(self, worker_addresses: Sequence[str]) -> tuple[DriverSpeed, ...]:
        """Of these workers, those that are driven now."""
        if not worker_addresses:
            return ()
        async with bounded("speeds"):
            values = await self._client.mget([SPEED_PREFIX + address for address in worker_addresses])
        return tuple([_speed(value) for value in values if value is not None])

    # --- models -------------------------------------------------------------------------------------------------------

    async def publish_model(self, card: ModelCard, files: TokenizerFiles) -> None:
        """Tell that a worker of this card is driven; again every few seconds. Files go along when nobody has them."""
        tokenizer_key = TOKENIZER_PREFIX + files.digest
        async with bounded("publish model"):
            await self._client.set(_model_key(card), encode(card), px=MODEL_TTL_MS)
            are_known = await self._client.pexpire(tokenizer_key, TOKENIZER_TTL_MS)
        if not are_known:
            async with bounded("publish tokenizer", _FILES_TIMEOUT_S):
                await self._client.set(tokenizer_key, encode(files), px=TOKENIZER_TTL_MS)

    async def models(self) -> tuple[ModelCard, ...]:
        """Cards of the models that somebody serves now, in order of names, each name once."""
        async with bounded("models"):
            found = [key async for key in self._client.scan_iter(match=f"{MODEL_PREFIX}*", count=MAX_MODELS)]
            keys = list(islice(sorted(found), MAX_MODELS))
            values = await self._client.mget(keys) if keys else []
        cards: dict[str, ModelCard] = {}
        for key, value in zip(keys, values, strict=True):
            card = _read(key, _in_bytes(value))
            if isinstance(card, ModelCard):
                cards.setdefault(card.name, card)
        return tuple(cards.values())

    async def tokenizer_files(self, digest: str) -> TokenizerFiles | None:
        """The files of that digest; None when nobody published them lately."""
        key = TOKENIZER_PREFIX + digest
        async with bounded("know tokenizer"):  # a store that is away is found out in the time of any other act
            if not await self._client.exists(key):
                return None
        async with bounded("tokenizer", _FILES_TIMEOUT_S):
            value = _in_bytes(await self._client.get(key))
        files = _read(key, value)
        return files if isinstance(files, TokenizerFiles) else None


def _model_key(card: ModelCard) -> str:
    return f"{MODEL_PREFIX}{quote(card.name, safe='')}:{card.tokenizer_digest}"


def _speed(value: bytes | str) -> DriverSpeed:
    model, tokens_per_s = orjson.loads(value)
    return DriverSpeed(model=model, tokens_per_s=tokens_per_s)


def _in_bytes(reply: object) -> bytes | None:
    """Clients of ``redis_client.connect`` answer in bytes, which their types do not say."""
    return reply if isinstance(reply, bytes) else None


def _read(key: str | bytes, frame: bytes | None) -> Message | None:
    """The message under ``key``; None when there is none, or (with a line in the log) another version's."""
    if frame is None:
        return None
    try:
        return decode(frame)
    except WireError as error:
        _log.warning("unreadable directory entry", key=key, error=str(error))
        return None
