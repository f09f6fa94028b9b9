"""A recorded live load of two gateways and two scripted workers, whose capacity is known, to be replayed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from tests.system.cluster import script, start_cluster
from tests.system.load import Outcome, Shot, fire

WORKERS, SLOTS = 2, 16
BASE_US, PREFILL_TOKEN_US, DECODE_US = 40_000, 50, 500
PROMPT_TOKENS, OUTPUT_TOKENS = (10, 120), (8, 40)
INTERACTIVE_SHARE = 0.3
QUEUE = 200

WORKER = script(
    output={"kind": "echo"},
    delays={"base_us": BASE_US, "prefill_token_us": PREFILL_TOKEN_US, "decode_sequence_us": DECODE_US},
    slots=SLOTS,
    blocks=4096,
)


def capacity_per_s() -> float:
    """Requests that the workers can serve while every slot decodes."""
    decode_us = sum(OUTPUT_TOKENS) / 2 * (BASE_US + SLOTS * DECODE_US) / SLOTS
    return WORKERS * 1_000_000 / (decode_us + sum(PROMPT_TOKENS) / 2 * PREFILL_TOKEN_US)


async def record_load(folder: Path, *, preset: str, load: float, seconds: float, seed: int) -> list[Outcome]:
    """Serve a share of the capacity and record it into ``folder / "logs"``; what the clients saw."""
    flags = ("--fake-worker", WORKER, "--workers", str(WORKERS), "--preset", preset, "--record", str(folder / "logs"))
    async with start_cluster(folder, *flags, "--queue-requests", str(QUEUE), gateways=2) as cluster:
        shots = list(_shots(cluster.addresses, load * capacity_per_s(), seconds, seed))
        return await fire(shots, processes=2)


def _shots(addresses: list[str], per_s: float, seconds: float, seed: int) -> Iterator[Shot]:
    """A Poisson process; each character of a prompt is one token, so its name is as long as the prompt is to be."""
    chance, at_s, number = random.Random(seed), 0.0, 0
    while (at_s := at_s + chance.expovariate(per_s)) < seconds:
        name = f"w{number:05}".ljust(chance.randint(*PROMPT_TOKENS) - 1, "x")
        yield Shot(
            name=name,
            url=f"{chance.choice(addresses)}/v1/completions",
            at_s=at_s,
            class_name="interactive" if chance.random() < INTERACTIVE_SHARE else "standard",
            max_tokens=chance.randint(*OUTPUT_TOKENS),
        )
        number += 1
