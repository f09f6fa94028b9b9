"""Paged attention behind transformers' attention interface.

The models are transformers' own. Each of their attention layers computes queries, keys and values and then calls the
function registered under the model's attention name; ours is ``paged_attention``. What it needs of the step it runs in
comes down to it as a keyword argument of the model's forward (``paged``), so nothing here is global: the argument is a
``PagedStep`` in service and a ``LayerProbe`` once at load.

Per layer: write the step's keys and values into the pool, then attend, group by group for sequences with one new token
and chunk by chunk for the others. No mask comes from transformers: an attention name without a mask function gets none.

How a device attends at all is its ``Backend``'s to say: it makes of a step's work what the model's forward needs. The
one here gathers, and serves everywhere; ``workers/cuda`` has one that reads pages in place.

Grouped-query attention repeats no keys: the query heads that share a key head become rows of one matrix product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from workers.batch import Batch, Target, View, build_batch, lay_out
from workers.errors import LoadError
from workers.kv_cache import KVPool, LayerShape
from workers.slots import Work

ATTENTION_NAME = "sluicegate_paged"

IGNORED_ARGUMENTS = frozenset(
    {
        "cu_seq_lens_k",
        "cu_seq_lens_q",
        "dropout",
        "is_causal",  # always so here; the probe refuses a layer that is not
        "max_length_k",
        "max_length_q",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "position_ids",
        "use_cache",
    }
)
"""What models hand to the interface that does not change a causal attention's result in inference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """How a layer attends: the scores are ``scale * q.k``, bent to stay within ``softcap`` if that is set."""

    layer: int
    scale: float
    softcap: float | None
    window: int | None


class Attender(Protocol):
    """Whoever stands behind the interface during one forward pass."""

    def attend(self, arguments: Arguments, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """[heads, tokens, dim] of each; returns [tokens, heads, value_dim]."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One forward pass, ready to run: ``ids`` and ``positions`` [tokens] of ``works`` one after the other.

    ``emit_rows`` has the row of each of ``emitting``.
    """

    works: tuple[Work, ...]
    ids: Tensor
    positions: Tensor
    emit_rows: Tensor
    emitting: tuple[Work, ...]
    attender: Attender


class Backend(Protocol):
    """A way to attend, on one pool."""

    @property
    def name(self) -> str: ...

    def prepare(self, works: Sequence[Work], tables: Tensor) -> Step:
        """Decodes and chunks in one step; ``tables`` [slots, blocks] on the host are those of all slots."""
        ...


def register() -> None:
    """Make the name known to transformers; calling again changes nothing."""
    AttentionInterface.register(ATTENTION_NAME, paged_attention)


def paged_attention(
    module: Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    softcap: float | None = None,
    sliding_window: int | None = None,
    paged: Attender | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """The interface's function: ``query``, ``key``, ``value`` are [1, heads, tokens, dim]."""
    if paged is None:
        raise LoadError(f"{type(module).__name__} does not hand its arguments on to the attention.")
    if isinstance(paged, LayerProbe):
        paged.check(module, attention_mask, others)
    arguments = Arguments(
        layer=module.layer_idx,  # type: ignore[arg-type] # torch types every attribute as Tensor or Module
        scale=scaling if scaling is not None else 1.0 / math.sqrt(query.shape[-1]),
        softcap=softcap,
        window=sliding_window,
    )
    return paged.attend(arguments, query[0], key[0], value[0])[None], None


# --- at load ----------------------------------------------------------------------------------------------------------


class LayerProbe:
    """Stands behind the interface once, at load, and notes what each layer keeps: the pool is built from that.

    Asking the layers beats reading a configuration: it also finds what does not come through the interface.
    """

    def __init__(self) -> None:
        self._found: dict[int, LayerShape] = {}

    def attend(self, arguments: Arguments, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        self._found[arguments.layer] = LayerShape(
            kv_heads=key.shape[0],
            key_dim=key.shape[2],
            value_dim=value.shape[2],
            window=arguments.window,
            softcap=arguments.softcap,
        )
        return query.new_zeros(query.shape[1], query.shape[0], value.shape[2])

    def check(self, module: Module, attention_mask: Tensor | None, others: dict[str, Any]) -> None:
        """Raises LoadError for what this attention cannot do."""
        name = type(module).__name__
        unknown = sorted(key for key, value in others.items() if value is not None and key not in IGNORED_ARGUMENTS)
        if unknown:
            raise LoadError(f"{name} attends with {', '.join(unknown)}, which cannot be served.")
        if attention_mask is not None:
            raise LoadError(f"{name} attends through a mask of its own, which cannot be served.")
        if not getattr(module, "is_causal", True) or others.get("is_causal") is False:
            raise LoadError(f"{name} looks ahead (it is not causal), which cannot be served.")
        if not hasattr(module, "layer_idx"):
            raise LoadError(f"{name} does not say which layer it is.")

    def layers(self, expected: int) -> tuple[LayerShape, ...]:
        """The layers in order. Raises LoadError unless ``expected`` of them came through the interface."""
        if sorted(self._found) != list(range(expected)):
            raise LoadError(
                f"Only {len(self._found)} of the model's {expected} layers attend through transformers' attention"
                " interface; the others cannot be served."
            )
        return tuple(self._found[layer] for layer in range(expected))


# --- in service -------------------------------------------------------------------------------------------------------


class GatherBackend:
    """Copies what a step looks at out of the pool, and attends to it with plain products: for any model, anywhere."""

    name = "gather"

    def __init__(self, pool: KVPool, target: Target, *, group_tokens: int) -> None:
        self._pool = pool
        self._target = target
        self._group_tokens = group_tokens

    def prepare(self, works: Sequence[Work], tables: Tensor) -> Step:
        layout = lay_out(works, self._group_tokens)
        batch = build_batch(layout, tables, self._target)
        return Step(
            works=layout.works,
            ids=batch.ids,
            positions=batch.positions,
            emit_rows=batch.emit_rows,
            emitting=batch.emitting,
            attender=PagedStep(batch=batch, pool=self._pool),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedStep:
    """The attention of one forward pass: a batch and the pool that it reads and writes."""

    batch: Batch
    pool: KVPool

    def attend(self, arguments: Arguments, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        layer = arguments.layer
        tensors = self.batch.kinds[self.pool.layers[layer].kind]
        self.pool.write(layer, tensors.write_rows, key, value)
        result = query.new_empty(query.shape[1], query.shape[0], value.shape[2])
        for view in tensors.groups:
            result[view.start : view.stop] = self._attend_group(view, arguments, query)
        for view in tensors.chunks:
            result[view.start : view.stop] = attend_chunk(self.pool, view, arguments, query[:, view.start : view.stop])
        return result

    def _attend_group(self, view: View, arguments: Arguments, query: Tensor) -> Tensor:
        """Sequences with one query each: their heads fold into a batch of small matrix products."""
        count, heads, dim = view.stop - view.start, query.shape[0], query.shape[2]
        kv_heads = self.pool.layers[arguments.layer].kv_heads
        folded = query[:, view.start : view.stop].view(kv_heads, heads // kv_heads, count, dim)
        folded = folded.permute(2, 0, 1, 3).reshape(count * kv_heads, heads // kv_heads, dim)
        keys, values = self.pool.gather(arguments.layer, view.rows, count * kv_heads)
        return attend_plainly(folded, keys, values, view.mask, arguments).view(count, heads, -1)


def attend_chunk(pool: KVPool, view: View, arguments: Arguments, chunk: Tensor) -> Tensor:
    """One sequence with several queries: ``chunk`` [heads, queries, dim]; [queries, heads, value_dim]."""
    heads, count, dim = chunk.shape
    kv_heads = pool.layers[arguments.layer].kv_heads
    keys, values = pool.gather(arguments.layer, view.rows, kv_heads)
    if arguments.softcap is None:
        attended = scaled_dot_product_attention(
            chunk[None], keys[None], values[None], view.mask, scale=arguments.scale, enable_gqa=heads != kv_heads
        )[0]
    else:
        folded = chunk.reshape(kv_heads, heads // kv_heads * count, dim)
        mask = view.mask.repeat(heads // kv_heads, 1)
        attended = attend_plainly(folded, keys, values, mask, arguments).view(heads, count, -1)
    return attended.transpose(0, 1)


def attend_plainly(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, arguments: Arguments) -> Tensor:
    """Attention as it is written: [n, queries, dim] over [n, tokens, dim], with ``mask`` added to the scores.

    For one query per sequence this beats the fused kernels on a CPU. Scores and their softmax are float32 whatever the
    model computes in: a score of 20 rounded to bfloat16 is off by up to 0.06, and its weight by as many percent.
    """
    query, keys = query.float(), keys.float()
    if arguments.softcap is None:
        scores = torch.baddbmm(mask, query, keys.transpose(1, 2), alpha=arguments.scale)
    else:
        scores = torch.bmm(query, keys.transpose(1, 2)) * arguments.scale
        scores = torch.tanh(scores / arguments.softcap) * arguments.softcap + mask
    weights = torch.softmax(scores, dim=-1)
    return torch.bmm(weights.to(values.dtype), values)
