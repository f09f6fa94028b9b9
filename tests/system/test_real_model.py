"""The default model through every part of the system, against transformers' own `generate`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import openai
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from tests.support import wait_until
from tests.system.cluster import Cluster, start_cluster
from workers.engine_settings import DEFAULT_MODEL
from workers.weights import default_cache, find_model

pytestmark = [pytest.mark.torch, pytest.mark.system, pytest.mark.timeout(400)]

MAX_TOKENS = 8
TIE = 1e-4  # two logits so close may change places with the order of a sum
LOAD_WITHIN_S = 200.0  # the first load converts the model

QUESTIONS = (
    "Hi",
    "What is the capital of France?",
    "Name three primary colours.",
    "Why is the sky blue?",
    "Who wrote Hamlet?",
    "What is 12 times 12?",
    "Give me a synonym for 'happy'.",
    "How do I boil an egg?",
)
LENGTHS = (1, 2, 7, 15, 16, 17, 31, 32, 33, 50, 64, 100, 150, 230)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """transformers' own answers to ``prompts``, as tokens."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    prompts: list[list[int]]
    outputs: list[list[int]]

    def text(self, token_ids: list[int]) -> str:
        return str(self.tokenizer.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


@pytest.fixture(scope="module")
def reference() -> Reference:
    folder = find_model(DEFAULT_MODEL, default_cache(), lambda _: None).path
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    chats = [
        tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True)["input_ids"]
        for question in QUESTIONS
    ]
    story = tokenizer("The history of the lighthouse begins long before there were ships to be warned. " * 20)[
        "input_ids"
    ]
    prompts = [*chats, *(story[:length] for length in LENGTHS)]
    return Reference(
        model=model, tokenizer=tokenizer, prompts=prompts, outputs=[generate(model, prompt) for prompt in prompts]
    )


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Small chunks and budget, so that prompts are cut and iterations mixed."""
    flags = ("--dtype", "float32", "--device", "cpu", "--token-budget", "48", "--prefill-chunk", "20")
    async with start_cluster(tmp_path, *flags, start_within_s=LOAD_WITHIN_S) as cluster:
        yield cluster


async def test_greedy_output_equals_that_of_transformers_alone_and_in_a_crowd(
    cluster: Cluster, reference: Reference, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither neighbours in the batch nor chunks nor anything between client and model may change an answer."""
    async with openai.AsyncOpenAI(base_url=cluster.base_url, api_key="none", max_retries=0, timeout=300) as client:
        alone = [await complete(client, prompt) for prompt in reference.prompts]
        crowd = await asyncio.gather(*(complete(client, prompt) for prompt in reference.prompts))

    for name, answers in (("one by one", alone), ("all at once", crowd)):
        ties = sum(parted_at_a_tie(reference, index, text) for index, text in enumerate(answers))
        with capsys.disabled():
            print(f"\n{name}: {len(answers)} prompts, {ties} parted where the two best logits are closer than {TIE}")
    await wait_until(cluster.is_idle, "everything is given back")


async def test_preempted_for_slots_and_for_memory_answers_stay_the_same(
    tmp_path: Path, reference: Reference, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is recomputed, from the start or from blocks that were kept, continues exactly where it was."""
    long = 56
    stories = [prompt for prompt in reference.prompts[len(QUESTIONS) :] if 7 <= len(prompt) <= 50]  # they run on
    tight = Reference(
        model=reference.model,
        tokenizer=reference.tokenizer,
        prompts=stories,
        outputs=[generate(reference.model, prompt, max_tokens=long) for prompt in stories],
    )
    flags = ("--dtype", "float32", "--device", "cpu", "--preset", "tutorial", "--max-slots", "3", "--kv-blocks", "12")
    async with (
        start_cluster(tmp_path, *flags, start_within_s=LOAD_WITHIN_S) as cluster,
        openai.AsyncOpenAI(base_url=cluster.base_url, api_key="none", max_retries=0, timeout=300) as client,
        asyncio.TaskGroup() as group,
    ):

        async def slots_are_taken() -> bool:
            return await cluster.metric("sluicegate_slots_in_use") == 3

        patient = [
            group.create_task(complete(client, prompt, max_tokens=long, tier="flex")) for prompt in tight.prompts[:5]
        ]
        await wait_until(slots_are_taken, "every slot is taken, and memory is not short yet", timeout_s=60)
        urgent = [
            group.create_task(complete(client, prompt, max_tokens=long, tier="priority"))
            for prompt in tight.prompts[5:]
        ]
        texts = [await answer for answer in (*patient, *urgent)]
        ties = sum(parted_at_a_tie(tight, index, text) for index, text in enumerate(texts))
        preempted = {
            reason: await cluster.metric("sluicegate_preemptions_total", reason=reason) for reason in ("slot", "kv")
        }
        await wait_until(cluster.is_idle, "everything is given back")
    assert min(preempted.values()) > 0
    with capsys.disabled():
        print(f"\npreempted {preempted}: {len(texts)} prompts, {ties} parted where the two best are closer than {TIE}")


async def test_with_deterministic_a_crowd_changes_nothing_in_bfloat16_either(tmp_path: Path) -> None:
    """C01: equal to the letter, drawn as well as greedy; the reference is the server itself, with nobody else there."""
    flags = ("--dtype", "bfloat16", "--device", "cpu", "--threads", "1", "--deterministic", "--token-budget", "48")
    random = Random(5)
    prompts = [[random.randrange(20, 40_000) for _ in range(length)] for length in LENGTHS[1:8:2]]
    async with (
        start_cluster(tmp_path, *flags, "--prefill-chunk", "20", start_within_s=LOAD_WITHIN_S) as cluster,
        openai.AsyncOpenAI(base_url=cluster.base_url, api_key="none", max_retries=0, timeout=300) as client,
    ):
        for temperature in (0.0, 0.9):
            alone = [await complete(client, prompt, max_tokens=5, temperature=temperature) for prompt in prompts]
            crowd = await asyncio.gather(
                *(complete(client, prompt, max_tokens=5, temperature=temperature) for prompt in prompts)
            )
            assert crowd == alone
        await wait_until(cluster.is_idle, "everything is given back")


async def test_a_chat_streams_english_about_the_question(cluster: Cluster) -> None:
    """What `make run` promises, as the official SDK sees it."""
    question = "What is the capital of France?"
    text = ""
    async with (
        openai.AsyncOpenAI(base_url=cluster.base_url, api_key="none", max_retries=0, timeout=300) as client,
        await client.chat.completions.create(
            model=DEFAULT_MODEL,
            messages=[{"role": "user", "content": question}],
            stream=True,
            temperature=0,
            max_tokens=24,
        ) as stream,
    ):
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
    assert "Paris" in text


async def complete(
    client: openai.AsyncOpenAI,
    prompt: list[int],
    *,
    max_tokens: int = MAX_TOKENS,
    tier: str = "default",
    temperature: float = 0.0,
) -> str:
    answer = await client.completions.create(
        model=DEFAULT_MODEL,
        prompt=prompt,
        max_tokens=max_tokens,
        temperature=temperature,
        seed=7,
        extra_body={"service_tier": tier},
    )
    return answer.choices[0].text


def generate(model: PreTrainedModel, prompt: list[int], *, max_tokens: int = MAX_TOKENS) -> list[int]:
    ids = torch.tensor([prompt])
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=max_tokens, pad_token_id=0
    )
    return list(output[0, ids.shape[1] :].tolist())


def parted_at_a_tie(reference: Reference, index: int, text: str) -> bool:
    """Whether ``text`` differs from the reference, and first where two tokens are as good as equal. Else fails."""
    output = reference.outputs[index]
    if text == reference.text(output):
        return False
    same = max(length for length in range(len(output)) if text.startswith(reference.text(output[:length])))
    with torch.inference_mode():
        logits = reference.model(torch.tensor([[*reference.prompts[index], *output[:same]]])).logits[0, -1]
    best = logits.topk(2).values
    gap = float(best[0] - best[1])
    assert gap < TIE, f"prompt {index} parts at token {same}, where the best leads by {gap}: {text!r}"
    return True
