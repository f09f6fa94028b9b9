"""What a gateway knows of models without asking: known, served, and for how long not."""

from __future__ import annotations

from gateway.cluster_view import MOST_MODELS, ClusterView
from workers.wire import ModelCard


def card(name: str) -> ModelCard:
    return ModelCard(
        name=name, context_length=8, vocab_size=8, eos_ids=(0,), tokenizer_digest="t", dtype="none", device="none"
    )


class Clock:
    now_us = 0

    def __call__(self) -> int:
        return self.now_us


def test_a_model_stays_known_when_its_last_worker_is_gone() -> None:
    """`no_worker` passes, `unknown_model` does not: clients treat them differently."""
    clock = Clock()
    view = ClusterView(clock=clock)
    view.list_models([card("m")])
    assert view.serves("m")
    view.list_models([])
    clock.now_us = 7
    assert (view.card("m"), view.serves("m"), view.unserved_for_us("m")) == (card("m"), False, 7)
    view.list_models([card("m")])
    assert view.unserved_for_us("m") == 0


def test_a_model_is_served_by_a_driver_here_before_the_directory_says_so() -> None:
    """The directory is read once a second; a worker that has just come need not wait for it."""
    view = ClusterView(clock=Clock())
    view.driver_began(card("m"))
    view.list_models([])
    assert view.serves_any()
    view.driver_ended(card("m"))
    assert not view.serves_any()


def test_the_number_of_remembered_models_is_bounded() -> None:
    """Names come from outside this process."""
    view = ClusterView(clock=Clock())
    view.list_models([card(str(number)) for number in range(MOST_MODELS + 5)])
    assert len(view.cards()) == MOST_MODELS
