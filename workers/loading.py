"""From settings to an engine that is warm: find the model, load it, size its pool, run it once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from workers import host_memory
from workers.cuda.loading import build, host_transfer, prepare
from workers.engine import Engine, Shapes
from workers.engine_settings import DEFAULT_MODEL, EngineSettings
from workers.errors import LoadError
from workers.fast.choose import ServedModel, choose_forward, choose_numbers
from workers.fast.forward import FastModel
from workers.host import free_memory, usable_cores
from workers.invariance import check_invariance, check_no_experts
from workers.kv_cache import KVPool, available_memory, block_bytes, pool_share, size_host_pool, size_pool
from workers.model import choose_device, load_model
from workers.tokenizer_files import eos_ids, read_tokenizer_files
from workers.weights import default_cache, find_model
from workers.wire import ModelCard, NewSequence, PlanMessage, PrefillSpan, Sampling

WARM_UP_TOKENS = 64


def load_engine(settings: EngineSettings, progress: Callable[[str], None]) -> Engine:
    """Find and load the model, build its pool and run once, so that the first request is as fast as the second.

    Raises LoadError, in one sentence, when these settings cannot be served.
    """
    torch.set_num_threads(settings.threads or usable_cores())
    device = choose_device(settings.device)
    dtype = choose_numbers(settings, device)
    found = find_model(settings.model or DEFAULT_MODEL, settings.model_cache or default_cache(), progress)
    progress(f"Loading {found.name} in {_name(dtype)} on {device.type}")
    plain = load_model(found.path, device, dtype)
    if settings.deterministic:
        check_no_experts(plain)
    model = choose_forward(plain, settings, progress)
    host_memory.give_back()  # the weights as they were loaded; before the pool takes a share of what is free
    if isinstance(model, FastModel):
        torch.set_num_threads(1)  # its kernels share work by themselves; torch's teams wait for a core that is busy
    context_length = _allowed_context(model, settings.max_model_len)
    is_overlapping = device.type == "cuda" and not settings.deterministic
    gpu = prepare(plain, settings, context_length, progress) if is_overlapping else None
    block_size = settings.block_size if gpu is None else gpu.block_size
    bytes_per_block = block_bytes(model.layers, block_size, dtype)
    size = size_pool(
        kv_blocks=settings.kv_blocks,
        available_bytes=available_memory(device) if gpu is None else gpu.room_bytes,
        share=pool_share(device),
        bytes_per_block=bytes_per_block,
        max_slots=settings.max_slots,
        context_length=context_length,
        block_size=block_size,
    )
    files = read_tokenizer_files(found.path)
    card = ModelCard(
        name=settings.served_model_name or found.name,
        context_length=size.context_length,
        vocab_size=model.vocab_size,
        eos_ids=eos_ids(found.path, files),
        tokenizer_digest=files.digest,
        dtype=_name(dtype),
        device=device.type,
    )
    pool = KVPool(
        layers=model.layers,
        num_blocks=size.num_blocks,
        block_size=block_size,
        dtype=dtype,
        device=device,
        transfer=host_transfer(device) if device.type == "cuda" else None,
    )
    host_blocks = size_host_pool(
        swap_mib=settings.swap_mib, available_bytes=free_memory(), bytes_per_block=bytes_per_block
    )
    shapes = Shapes.FIXED if settings.deterministic else Shapes.MIXED
    make: Callable[..., Engine] = partial(Engine, shapes=shapes) if gpu is None else partial(build, gpu)
    engine = make(model=model, pool=pool, card=card, files=files, max_slots=settings.max_slots, host_blocks=host_blocks)
    warm_up(engine)
    if settings.deterministic:
        progress("Trying out that neighbours change nothing")
        check_invariance(engine)
    progress(
        f"{card.name} is ready: {settings.max_slots} slots, {size.num_blocks} KV blocks of {block_size}"
        f" tokens, a context of {size.context_length}"
    )
    return engine


def warm_up(engine: Engine) -> None:
    """Prefill a little and decode once: the first pass of each kind pays for memory and kernels to be set up."""
    length = min(WARM_UP_TOKENS, engine.card.context_length - 2)
    if length < 1:
        return
    num_blocks = -(-(length + 2) // engine.block_size)
    sequence = NewSequence(
        slot=0,
        sequence_id="warm-up",
        tokens=(0,) * length,
        emitted=0,
        computed=0,
        max_tokens=2,
        sampling=Sampling(temperature=1.0, top_p=0.9, ignore_eos=True, top_logprobs=1),
        blocks=tuple(range(num_blocks)),
    )
    nothing = PlanMessage(step=0, epoch=0, frees=(), starts=(), grows=(), copies=(), prefill=(), decode=())
    prefill = PrefillSpan(slot=0, start=0, length=length, emits=True)
    engine.execute(replace(nothing, starts=(sequence,), prefill=(prefill,)))
    engine.execute(replace(nothing, decode=(0,)))
    engine.reset()


def _allowed_context(model: ServedModel, asked: int | None) -> int:
    if asked is not None and asked > model.context_length:
        raise LoadError(f"The model's context holds {model.context_length} tokens, fewer than the {asked} asked for.")
    return asked or model.context_length


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
