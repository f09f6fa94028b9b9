"""Whatever the schema lets through, the wire carries and a worker can use."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.schema_generation import GenerationBody
from tests.gateway.bodies import completion
from workers.wire import Job, decode, encode

VOCAB_SIZE = 331
SHARES, PENALTIES = st.floats(0, 1), st.floats(-2, 2)
TOKEN_IDS = st.integers(0, VOCAB_SIZE - 1)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.floats(0, 2) | st.integers(0, 2),
        "top_p": SHARES | st.integers(0, 1),
        "min_p": SHARES,
        "top_k": st.integers(-1, (1 << 31) - 1),
        "seed": st.integers(-(1 << 63), (1 << 63) - 1),
        "presence_penalty": PENALTIES | st.integers(-2, 2),
        "frequency_penalty": PENALTIES,
        "repetition_penalty": st.floats(0.01, 100) | st.integers(1, 100),
        "logit_bias": st.dictionaries(TOKEN_IDS.map(str), st.floats(-100, 100) | st.integers(-100, 100), max_size=5),
        "stop_token_ids": st.lists(TOKEN_IDS, max_size=5),
        "min_tokens": st.integers(0, 1 << 40),
        "logprobs": st.integers(0, 20),
        "prompt_logprobs": st.integers(0, 20),
        "ignore_eos": st.booleans(),
        "echo": st.booleans(),
    },
)


def parsed(fields: dict[str, object]) -> GenerationBody:
    body = completion(**fields)
    body.check_token_ids(VOCAB_SIZE)
    return body


@given(fields=FIELDS, choice=st.integers(0, 127))
def test_the_wire_carries_it_as_it_is(fields: dict[str, object], choice: int) -> None:
    """A value that the codec refuses would be a fault of the gateway's, and a 500."""
    job = Job(
        sequence_id="s",
        origin="o",
        class_name="c",
        rank=0,
        prompt_ids=(5,),
        emitted_ids=(),
        max_tokens=1,
        expected_tokens=1,
        sampling=parsed(fields).sampling(fresh_seed=(1 << 63) - 1, choice=choice),
        deadline_us=None,
    )
    assert decode(encode(job)) == job


@pytest.mark.torch
@given(fields=FIELDS)
def test_a_worker_can_use_it(fields: dict[str, object]) -> None:
    """What it cannot use fails there, after the prompt was computed."""
    from workers.chooser import check_sampling  # noqa: PLC0415 - numpy comes with the worker's extra

    check_sampling(parsed(fields).sampling(fresh_seed=0), VOCAB_SIZE)
