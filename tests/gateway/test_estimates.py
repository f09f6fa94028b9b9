"""What is expected of a request: by its kind, and never without a bound."""

from __future__ import annotations

from admission.estimate import COLD_TOKENS, LEAST_SAMPLES
from gateway.estimates import MOST_KINDS, Estimates


def taught(*kinds: tuple[str, str], output_tokens: int = 5) -> Estimates:
    estimates = Estimates()
    for model, class_name in kinds:
        for _ in range(LEAST_SAMPLES):
            estimates.note(model, class_name, output_tokens)
    return estimates


def test_each_model_and_class_is_a_kind_of_its_own() -> None:
    """Batch jobs write long texts, and a small model other ones than a large one."""
    estimates = taught(("m", "batch"))
    assert estimates.expected("m", "batch", 100) == 5
    assert estimates.expected("m", "interactive", 100) == 100
    assert estimates.expected("other", "batch", 100) == 100


def test_nobody_knows_less_of_a_kind_before_its_first_answer_than_after_it() -> None:
    """Else a cold gateway would keep memory for all that its first clients allow, and run a few of them."""
    estimates = Estimates()
    before = estimates.expected("m", "batch", 10_000)
    estimates.note("m", "batch", 5)
    assert before == estimates.expected("m", "batch", 10_000) == COLD_TOKENS


def test_what_a_client_allows_is_never_exceeded() -> None:
    """The queue counts no token that cannot come."""
    assert taught(("m", "batch"), output_tokens=50).expected("m", "batch", 3) == 3


def test_kinds_beyond_the_bound_are_not_learnt() -> None:
    """A cluster that changes its models for ever must not grow for ever."""
    estimates = taught(*((f"m{number}", "batch") for number in range(MOST_KINDS)), ("one more", "batch"))
    assert estimates.expected(f"m{MOST_KINDS - 1}", "batch", 100) == 5
    assert estimates.expected("one more", "batch", 100) == 100
