"""Choosing tokens: each row by itself, by its own parameters and its own number."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.chooser import BadSampling, Chooser, Draw, check_sampling
from workers.randomness import uniform
from workers.sampler import choose as choose_where_they_are
from workers.sampler import log_probabilities, sample
from workers.wire import LOWEST_LOGPROB, Sampling

pytestmark = pytest.mark.torch


def draw_of(*, number: float = 0.5, **fields: object) -> Draw:
    return Draw(sampling=Sampling(**fields), number=number)  # type: ignore[arg-type]  # the callers name its fields


GREEDY = draw_of(temperature=0.0)


def sample_all(logits: torch.Tensor, draws: list[Draw]) -> list[int | None]:
    return sample(logits, dict(enumerate(draws)))


def choose(
    logits: list[float], sampling: Sampling, *, prompt: tuple[int, ...] = (), output: tuple[int, ...] = ()
) -> int:
    """The token that a sequence with this past would take; its eos is 0."""
    chooser = Chooser(sampling, prompt=prompt, output=(), ending_ids={0}, vocab_size=len(logits))
    for token in output:
        chooser.note(token)
    (token_id,) = sample(torch.tensor([logits]), {0: chooser.draw(len(output))})
    assert token_id is not None
    return token_id


def logits_of(probabilities: list[float]) -> torch.Tensor:
    return torch.tensor([probabilities]).log()


def test_greedy_takes_the_best() -> None:
    """Temperature 0 means no chance at all."""
    assert sample_all(logits_of([0.2, 0.5, 0.3]), [GREEDY]) == [1]


@pytest.mark.parametrize(
    "draw",
    [draw_of(temperature=1e-5, number=0.99), draw_of(top_p=1e-5, number=0.99), draw_of(top_k=1, number=0.99)],
    ids=str,
)
def test_tiny_temperature_or_nucleus_is_greedy(draw: Draw) -> None:
    """A07: dividing by almost nothing would overflow where the answer is plain."""
    assert sample_all(logits_of([0.3, 0.4, 0.3]), [draw]) == [1]


@pytest.mark.parametrize(("number", "token"), [(0.0, 0), (0.19, 0), (0.21, 1), (0.69, 1), (0.71, 2), (0.999999, 2)])
def test_the_number_picks_by_cumulated_probability(number: float, token: int) -> None:
    """In the vocabulary's order, which no rounding error can change."""
    assert sample_all(logits_of([0.2, 0.5, 0.3]), [draw_of(temperature=1.0, top_p=1.0, number=number)]) == [token]


def test_temperature_flattens_or_sharpens() -> None:
    """At temperature 2 the probabilities are as their square roots."""
    roots = [math.sqrt(0.1), math.sqrt(0.9)]
    edge = roots[0] / sum(roots)
    draws = [draw_of(temperature=2.0, top_p=1.0, number=edge + delta) for delta in (-0.01, 0.01)]
    assert sample_all(logits_of([0.1, 0.9]).repeat(2, 1), draws) == [0, 1]


def test_the_nucleus_is_the_smallest_set_that_reaches_top_p() -> None:
    """With 0.5 + 0.3 the mass of 0.75 is reached: the rest is out of the draw."""
    logits = logits_of([0.15, 0.5, 0.05, 0.3]).repeat(50, 1)
    draws = [draw_of(temperature=1.0, top_p=0.75, number=index / 50) for index in range(50)]
    counts = Counter(sample_all(logits, draws))
    assert set(counts) == {1, 3}
    assert counts[1] == pytest.approx(50 * 5 / 8, abs=1)


def test_a_flat_row_has_a_wide_nucleus() -> None:
    """Looking at the most probable tokens alone must not cut it short."""
    logits = torch.zeros(100, 16384) + torch.linspace(0, 1e-3, 16384)
    draws = [draw_of(temperature=1.0, top_p=0.5, number=index / 100) for index in range(100)]
    chosen = sample_all(logits, draws)
    assert min(chosen) < 8300
    assert all(token >= 8180 for token in chosen)


def test_tokens_of_no_probability_are_never_chosen() -> None:
    """Not at either end of the draw either."""
    logits = torch.tensor([[-math.inf, 0.0, -math.inf, 0.0, -math.inf]]).repeat(2, 1)
    draws = [draw_of(temperature=1.0, top_p=1.0, number=number) for number in (0.0, 1.0 - 2.0**-53)]
    assert sample_all(logits, draws) == [1, 3]


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_row_that_is_not_finite_fails_alone(broken: float) -> None:
    """One sequence's NaN is not its neighbour's business."""
    logits = torch.tensor([[0.0, 1.0], [0.0, broken], [2.0, 1.0]])
    assert sample_all(logits, [GREEDY, GREEDY, draw_of(temperature=1.0, top_p=0.9, number=0.1)]) == [1, None, 0]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=math.nan),
        Sampling(temperature=math.inf),
        Sampling(temperature=-1.0),
        Sampling(top_p=1.5),
        Sampling(min_p=-0.1),
        Sampling(top_k=0),
        Sampling(presence_penalty=math.nan),
        Sampling(frequency_penalty=math.inf),
        Sampling(repetition_penalty=0.0),
        Sampling(logit_bias=((7, 1.0),)),
        Sampling(logit_bias=((1, math.nan),)),
        Sampling(top_logprobs=21),
        Sampling(prompt_logprobs=21),
    ],
    ids=str,
)
def test_a_parameter_out_of_range_is_refused(sampling: Sampling) -> None:
    """The gateway checks; a worker still survives."""
    with pytest.raises(BadSampling):
        check_sampling(sampling, vocab_size=7)


# --- what changes logits ----------------------------------------------------------------------------------------------


def test_a_bias_is_added_and_of_two_the_last_counts() -> None:
    """OpenAI's rule: before anything else, also for greedy choices."""
    bias = ((0, 9.0), (0, 0.5), (2, -5.0))
    assert choose([1.0, 1.2, 3.0], Sampling(temperature=0.0, logit_bias=bias)) == 0


def test_no_end_comes_before_min_tokens() -> None:
    """Not even when it is by far the best."""
    sampling = Sampling(temperature=0.0, min_tokens=2)
    assert [choose([9.0, 1.0, 0.0], sampling, output=(1,) * length) for length in range(3)] == [1, 1, 0]


def test_presence_counts_once_and_frequency_each_time_in_the_output_alone() -> None:
    """OpenAI's definition; the prompt is free."""
    presence, frequency = (Sampling(temperature=0.0, **{f"{name}_penalty": 1.0}) for name in ("presence", "frequency"))
    logits = [2.0, 0.5, 0.1]
    assert choose(logits, presence, prompt=(0, 0, 0)) == 0
    assert choose(logits, presence, output=(0, 0, 0)) == 0
    assert choose(logits, frequency, output=(0,)) == 0
    assert choose(logits, frequency, output=(0, 0)) == 1


def test_repetition_pulls_prompt_and_output_towards_unlikely_whatever_their_sign() -> None:
    """Dividing a negative logit would make it likelier."""
    sampling = Sampling(temperature=0.0, repetition_penalty=2.0)
    assert choose([3.0, 2.0, 0.0], sampling, prompt=(0,)) == 1
    assert choose([3.0, 2.0, 1.6], sampling, prompt=(0,), output=(1,)) == 2
    assert choose([-1.0, -1.5, -9.0], sampling, prompt=(0,)) == 1


@settings(deadline=None, max_examples=50)
@given(
    prompt=st.lists(st.integers(0, 39), max_size=30), output=st.lists(st.integers(0, 39), max_size=60), data=st.data()
)
def test_penalties_are_those_of_the_definition_and_survive_a_move(
    prompt: list[int], output: list[int], data: st.DataObject
) -> None:
    """Against arithmetic token by token; a part of the output may have come before the sequence moved here."""
    sampling = Sampling(temperature=0.0, presence_penalty=0.7, frequency_penalty=0.3, repetition_penalty=1.4)
    logits = torch.randn(40, generator=torch.Generator().manual_seed(len(prompt) + 100 * len(output)))
    expected = [
        (float(logit) / 1.4 if logit > 0 else float(logit) * 1.4) if token in {*prompt, *output} else float(logit)
        for token, logit in enumerate(logits)
    ]
    expected = [logit - 0.3 * output.count(token) - 0.7 * (token in output) for token, logit in enumerate(expected)]
    before = data.draw(st.integers(0, len(output)))
    chooser = Chooser(sampling, prompt=prompt, output=output[:before], ending_ids=(), vocab_size=40)
    for token in output[before:]:
        chooser.note(token)
    (chosen,) = sample(logits[None], {0: chooser.draw(len(output))})
    assert chosen is not None
    assert expected[chosen] == pytest.approx(max(expected), abs=1e-5)


def test_a_row_with_everything_masked_fails_alone() -> None:
    """There is no token to give, at any temperature."""
    masked = Chooser(
        Sampling(temperature=0.0, min_tokens=1), prompt=(5,), output=(), ending_ids={0, 1, 99}, vocab_size=2
    ).draw(0)
    assert sample(torch.tensor([[0.0, 1.0], [0.0, 1.0]]), {0: masked, 1: GREEDY}) == [None, 1]


def test_a_bias_that_overflows_fails_its_row() -> None:
    """A finite number on the wire may be none in the arithmetic of the model."""
    chooser = Chooser(Sampling(logit_bias=((1, 3e38),)), prompt=(), output=(), ending_ids=(), vocab_size=2)
    assert sample(torch.tensor([[0.0, 3e38]]), {0: chooser.draw(0)}) == [None]


@pytest.mark.parametrize("temperature", [2e-4, 1.0, 1e6])
def test_extreme_values_that_are_numbers_give_a_token(temperature: float) -> None:
    """What is divided is the distance to the best, which can overflow to no NaN."""
    bias = ((1, 3.4e38), (2, 3.4e38), (3, -3.4e38))
    chooser = Chooser(
        Sampling(temperature=temperature, logit_bias=bias), prompt=(), output=(), ending_ids=(), vocab_size=4
    )
    assert sample(torch.zeros(1, 4), {0: chooser.draw(0)})[0] in (range(4) if temperature == 1e6 else (1, 2))


# --- what limits the choice -------------------------------------------------------------------------------------------


def chosen_tokens(probabilities: list[float], **fields: object) -> set[int | None]:
    """Every token that some random number gives."""
    draws = [draw_of(number=index / 200, **fields) for index in range(200)]
    return set(sample_all(logits_of(probabilities).repeat(200, 1), draws))


def test_top_k_leaves_so_many() -> None:
    """More than the vocabulary holds is no limit."""
    assert chosen_tokens([0.1, 0.4, 0.2, 0.3], top_k=2) == {1, 3}
    assert chosen_tokens([0.1, 0.4, 0.2, 0.3], top_k=1_000) == {0, 1, 2, 3}


def test_min_p_is_a_share_of_the_best() -> None:
    """Half of 0.4 is 0.2."""
    assert chosen_tokens([0.1, 0.4, 0.19, 0.31], min_p=0.5) == {1, 3}


def test_the_nucleus_is_taken_of_what_top_k_left() -> None:
    """0.4 of 0.7 is less than 0.6 of it; of the whole it would have been enough with a nucleus of 0.4."""
    assert chosen_tokens([0.1, 0.4, 0.2, 0.3], top_k=2, top_p=0.5) == {1}
    assert chosen_tokens([0.1, 0.4, 0.2, 0.3], top_k=2, top_p=0.6) == {1, 3}


# --- log-probabilities ------------------------------------------------------------------------------------------------


def test_log_probabilities_are_of_the_token_and_the_likeliest_beside_it() -> None:
    """As many as each row asked for, none among them."""
    logits = logits_of([0.1, 0.6, 0.3]).repeat(2, 1)
    first, second = log_probabilities(logits, [0, 1], [2, 0])
    assert first.own == pytest.approx(math.log(0.1))
    assert first.top_ids == (1, 2)
    assert first.top == pytest.approx((math.log(0.6), math.log(0.3)))
    assert (second.own, second.top_ids, second.top) == (pytest.approx(math.log(0.6)), (), ())


def test_a_log_probability_is_always_a_number() -> None:
    """Minus infinity has no place in JSON, nor on the wire."""
    (score,) = log_probabilities(torch.tensor([[0.0, -math.inf]]), [1], [2])
    assert score.own == LOWEST_LOGPROB
    assert score.top[1] == LOWEST_LOGPROB


def test_which_of_equals_are_listed_does_not_depend_on_what_other_rows_ask_for() -> None:
    """Logits of bfloat16 are equal by the dozen."""
    logits = torch.arange(400).div(20).floor().flip(0).repeat(2, 1)
    narrow, _ = log_probabilities(logits, [0, 0], [3, 20])
    assert log_probabilities(logits[:1], [0], [3]) == [narrow]


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**32), rows=st.integers(2, 8))
def test_a_row_does_not_depend_on_its_neighbours(seed: int, rows: int) -> None:
    """Any mixture of greedy, plain and nucleus rows gives each what it gets alone."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, 300, generator=generator) * 3
    penalised = Sampling(
        temperature=0.8, repetition_penalty=1.3, frequency_penalty=0.2, logit_bias=((3, 2.0),), min_tokens=1
    )
    kinds = (
        GREEDY,
        draw_of(temperature=0.7, number=0.3),
        draw_of(temperature=1.2, top_p=0.6, number=0.8),
        draw_of(temperature=1.2, top_k=20, min_p=0.01, top_p=0.9, number=0.6),
        Chooser(penalised, prompt=(1, 2, 3), output=(), ending_ids=(0,), vocab_size=300).draw(0),
    )
    draws = [kinds[(seed + row) % 5] for row in range(rows)]
    assert sample_all(logits, draws) == [sample_all(logits[row : row + 1], [draws[row]])[0] for row in range(rows)]


@pytest.mark.parametrize("size", [96, 5000, 50_001])
def test_a_row_does_not_depend_on_batch_or_threads_in_a_vocabulary_of_any_size(size: int) -> None:
    """Rows are drawn from some at a time, and libraries share long work out among threads."""
    logits = torch.randn(24, size, generator=torch.Generator().manual_seed(size)) * 3
    limits = ({"top_p": 1.0}, {"top_p": 0.95}, {"top_p": 1.0, "min_p": 0.02}, {"top_k": 30, "top_p": 0.8})
    draws = [draw_of(temperature=1.1, number=uniform(9, 0, row), **limits[row % 4]) for row in range(24)]
    alone = [sample_all(logits[row : row + 1], [draws[row]])[0] for row in range(24)]
    scores = [log_probabilities(logits[row : row + 1], [row], [5])[0] for row in range(24)]
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            assert sample_all(logits, draws) == alone
            assert log_probabilities(logits, list(range(24)), [5] * 24) == scores
    finally:
        torch.set_num_threads(before)


draws_of_all_kinds = st.builds(
    draw_of,
    number=st.floats(0.0, 1.0, exclude_max=True),
    temperature=st.floats(0.1, 5.0),
    top_k=st.none() | st.integers(2, 800),
    top_p=st.just(1.0) | st.floats(0.01, 1.0),
    min_p=st.just(0.0) | st.floats(0.0, 1.0),
)


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32), size=st.sampled_from([5, 128, 700]), draw=draws_of_all_kinds)
def test_a_draw_is_that_of_the_definition(seed: int, size: int, draw: Draw) -> None:
    """Against the plain text of it, token by token; at an edge rounding may put it on either side.

    Or between both, on a token that weighs less than what rounding moves the edge by.
    """
    logits = torch.randn(size, generator=torch.Generator().manual_seed(seed)) * 3
    (chosen,) = sample_all(logits[None], [draw])
    allowed = {drawn_by_definition(logits.tolist(), draw, shift) for shift in (-1e-5, 0.0, 1e-5)}
    assert min(allowed) <= chosen <= max(allowed)


def drawn_by_definition(logits: list[float], draw: Draw, shift: float) -> int:
    """``shift`` moves the edge of the nucleus and of the draw."""
    sampling, best = draw.sampling, max(logits)
    if draw.is_greedy:
        return logits.index(best)
    weights = [math.exp((logit - best) / sampling.temperature) for logit in logits]
    weights = [weight if weight >= sampling.min_p else 0.0 for weight in weights]
    if sampling.top_k is not None:
        least = sorted(weights, reverse=True)[: sampling.top_k][-1]
        weights = [weight if weight >= least else 0.0 for weight in weights]
    mass, kept = 0.0, 0.0
    for weight in sorted(weights, reverse=True):
        if mass >= (sampling.top_p + shift) * sum(weights):
            break
        mass, kept = mass + weight, weight
    if sampling.top_p < 1.0:
        weights = [weight if weight >= kept else 0.0 for weight in weights]
    sought, passed = (draw.number + shift) * sum(weights), 0.0
    for token, weight in enumerate(weights):
        passed += weight
        if weight and passed > sought:
            return token
    return max(token for token, weight in enumerate(weights) if weight)


def test_samples_follow_the_distribution() -> None:
    """The numbers and the draw together give each token its share."""
    probabilities = [0.1, 0.2, 0.3, 0.4]
    draws = [draw_of(temperature=1.0, top_p=1.0, number=uniform(5, 0, position)) for position in range(4000)]
    counts = Counter(sample_all(logits_of(probabilities).repeat(4000, 1), draws))
    for token, probability in enumerate(probabilities):
        assert counts[token] / 4000 == pytest.approx(probability, abs=0.03)


# --- left on the device -----------------------------------------------------------------------------------------------


def test_broken_rows_are_told_apart_without_reading_them() -> None:
    """Whoever reads the tokens later finds there which of them are none."""
    logits = torch.tensor([[0.1, 0.2], [float("nan"), 1.0], [float("-inf")] * 2, [2.0, 1.0]])
    draws = {1: draw_of(top_p=0.9), 2: draw_of(top_k=2, min_p=0.1), 3: draw_of(temperature=1.0, top_p=0.5)}
    choice = choose_where_they_are(logits, draws)
    assert choice.is_sound.tolist() == [True, False, False, True]
    assert choice.tokens.min() >= 0
    assert choice.tokens.max() < 2
    assert choice.read() == [1, None, None, 0]
