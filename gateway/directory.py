"""Who is there: gateways and where to relay to, workers and who drives them, models and their tokenizers.

Everything here is announced with a lifetime and renewed by whoever stands behind it, so that a dead gateway disappears
by itself. A lease on a worker is a courtesy (liveness): what keeps two drivers apart is the *epoch* that comes with it,
a number that only grows and that the worker checks.

Every call raises ``StoreUnavailable`` within about a second when Redis is frozen or gone.
"""

from __future__ import annotations

import dataclasses

import orjson
import redis.asyncio

from admission.keys import (
    EPOCH,
    GATEWAY_PREFIX,
    GATEWAY_TTL_MS,
    MODEL_NAMES,
    MODEL_PREFIX,
    MODEL_TTL_MS,
    TOKENIZER_PREFIX,
    TOKENIZER_TTL_MS,
    WORKER_LEASE_TTL_MS,
    WORKER_PREFIX,
)
from admission.redis_client import bounded
from admission.scripts import load_script, run_script
from workers.wire import ModelCard, TokenizerFiles


class Directory:
    """The directory as one gateway uses it."""

    def __init__(self, client: redis.asyncio.Redis, *, gateway_id: str) -> None:
        self._client = client
        self._gateway_id = gateway_id
        self._renew = load_script("renew_lease", num_keys=1)
        self._release = load_script("release_lease", num_keys=1)

    async def ping(self) -> None:
        async with bounded("ping"):
            await self._client.ping()

    # --- gateways -----------------------------------------------------------------------------------------------------

    async def announce(self, relay_address: str) -> None:
        """This gateway takes output for its requests at ``relay_address``. Call it every few seconds."""
        async with bounded("announce"):
            await self._client.set(GATEWAY_PREFIX + self._gateway_id, relay_address, px=GATEWAY_TTL_MS)

    async def withdraw(self) -> None:
        """This gateway leaves."""
        async with bounded("withdraw"):
            await self._client.delete(GATEWAY_PREFIX + self._gateway_id)

    async def relay_address(self, gateway_id: str) -> str | None:
        """Where to send output for requests of ``gateway_id``; None: it is not there (any more)."""
        async with bounded("relay address"):
            address = await self._client.get(GATEWAY_PREFIX + gateway_id)
        return None if address is None else address.decode()

    # --- workers ------------------------------------------------------------------------------------------------------

    async def take_worker(self, worker_address: str, *, above_epoch: int = 0) -> int | None:
        """Take the lease on a worker. An epoch above all that were given, and ``above_epoch``; None: another has it.

        ``above_epoch`` is the last one that the worker saw: it matters when Redis has lost its data. Taking a lease
        that one has gives a new epoch, so a call whose reply was lost may be repeated.
        """
        lease = WORKER_PREFIX + worker_address
        async with bounded("take worker"):
            if not await self._client.set(lease, self._gateway_id, px=WORKER_LEASE_TTL_MS, nx=True):
                if not await self._renewed(lease):
                    return None
            epoch = int(await self._client.incr(EPOCH))
            if epoch <= above_epoch:
                epoch = int(await self._client.incrby(EPOCH, above_epoch + 1 - epoch))
        return epoch

    async def renew_worker(self, worker_address: str) -> bool:
        """Whether the lease lives on; False: it ended, and another may drive the worker under a higher epoch."""
        async with bounded("renew worker"):
            return await self._renewed(WORKER_PREFIX + worker_address)

    async def release_worker(self, worker_address: str) -> None:
        """End the lease at once, if it is ours."""
        async with bounded("release worker"):
            await run_script(self._client, self._release, [WORKER_PREFIX + worker_address], self._gateway_id)

    async def _renewed(self, lease: str) -> bool:
        reply = await run_script(self._client, self._renew, [lease], self._gateway_id, WORKER_LEASE_TTL_MS)
        return bool(reply == b"renewed")

    # --- models -------------------------------------------------------------------------------------------------------

    async def publish_model(self, card: ModelCard, files: TokenizerFiles) -> None:
        """A worker of this model is there. Call it every few seconds; the files travel only when they are missing."""
        tokenizer = TOKENIZER_PREFIX + files.digest
        async with bounded("publish model"):
            if not await self._client.pexpire(tokenizer, TOKENIZER_TTL_MS):
                async with self._client.pipeline(transaction=True) as together:
                    together.hset(tokenizer, mapping=dict(files.files))
                    together.pexpire(tokenizer, TOKENIZER_TTL_MS)
                    await together.execute()
            async with self._client.pipeline(transaction=True) as together:
                together.set(MODEL_PREFIX + card.name, _pack(card), px=MODEL_TTL_MS)
                together.sadd(MODEL_NAMES, card.name)
                together.pexpire(MODEL_NAMES, MODEL_TTL_MS)
                await together.execute()

    async def models(self) -> tuple[ModelCard, ...]:
        """The models that somebody serves now, by name."""
        async with bounded("models"):
            names = sorted(await self._client.smembers(MODEL_NAMES))
            if not names:
                return ()
            cards = await self._client.mget([MODEL_PREFIX.encode() + name for name in names])
            ended = [name for name, card in zip(names, cards, strict=True) if card is None]
            if ended:  # one that comes back in this very moment is named again by its next renewal
                await self._client.srem(MODEL_NAMES, *ended)
        return tuple(_unpack(card) for card in cards if card is not None)

    async def tokenizer_files(self, digest: str) -> TokenizerFiles | None:
        """The files of a tokenizer by name, in order of name; None: nobody published it lately."""
        async with bounded("tokenizer files"):
            files = await self._client.hgetall(TOKENIZER_PREFIX + digest)
        if not files:
            return None
        return TokenizerFiles(digest=digest, files=tuple(sorted((name.decode(), text) for name, text in files.items())))


def _pack(card: ModelCard) -> bytes:
    return orjson.dumps(dataclasses.asdict(card))


def _unpack(packed: bytes) -> ModelCard:
    fields = orjson.loads(packed)
    return ModelCard(**fields | {"eos_ids": tuple(fields["eos_ids"])})
