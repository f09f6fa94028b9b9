"""What a claim is given when not everything fits: passing over, exchange, guaranteed shares."""

from __future__ import annotations

from admission.classes import BATCH, INTERACTIVE, SECOND_US
from admission.queue import LOOK_AHEAD, Asked, Offered
from tests.admission.waiting import DRIVER, OTHER, Waiting

# --- passing over -----------------------------------------------------------------------------------------------------


def test_a_head_that_was_passed_often_enough_is_served_next() -> None:
    """Small requests may use room that a large one cannot, but not for ever."""
    waiting = Waiting(max_passes=2)
    waiting.offer("large", tokens=100)
    for number in range(5):
        waiting.offer(f"small{number}", tokens=10)
    assert waiting.take(slots=1, kv_tokens=50) == ["small0"]
    assert waiting.take(slots=1, kv_tokens=50, driver=OTHER) == ["small1"]
    assert waiting.take(slots=1, kv_tokens=50) == []
    assert waiting.take(slots=2, kv_tokens=120) == ["large", "small2"]


def test_each_entry_that_goes_ahead_counts_also_within_one_claim() -> None:
    """A claim for many slots must not pass a head more often than many claims for one."""
    waiting = Waiting(max_passes=2)
    waiting.offer("large", tokens=100)
    for number in range(5):
        waiting.offer(f"small{number}", tokens=10)
    assert waiting.take(slots=5, kv_tokens=99) == ["small0", "small1"]


def test_nothing_is_passed_over_where_that_is_not_allowed() -> None:
    """Zero means strict."""
    waiting = Waiting(max_passes=0)
    waiting.offer("large", tokens=100)
    waiting.offer("small")
    assert waiting.take(kv_tokens=50) == []


def test_a_claim_without_a_free_slot_passes_nobody() -> None:
    """What is short then is a slot, and that fits anybody."""
    waiting = Waiting()
    waiting.offer("head")
    waiting.offer("second")
    assert waiting.take(slots=0) == []
    assert waiting.take(slots=2) == ["head", "second"]


def test_a_look_for_what_fits_ends_after_a_while() -> None:
    """The cost of a claim must not grow with the queue."""
    waiting = Waiting()
    for number in range(LOOK_AHEAD):
        waiting.offer(f"large{number}", tokens=100)
    waiting.offer("small")
    assert waiting.take(kv_tokens=50) == []
    assert waiting.take(kv_tokens=100) == ["large0"]
    assert waiting.take(kv_tokens=50) == ["small"]


def test_an_offer_may_pass_heads_on_its_way_to_a_standing_want() -> None:
    """The driver has room for it and for nothing that waits."""
    waiting = Waiting(max_passes=1)
    waiting.offer("large", tokens=100)
    waiting.claim(slots=3, kv_tokens=50)
    assert waiting.offer("small") is Offered.HANDED
    assert waiting.handed() == ["small"]
    assert waiting.offer("another small") is Offered.QUEUED


def test_a_driver_is_woken_by_what_it_may_have_and_by_nothing_else() -> None:
    """A wake-up for nothing costs a claim, a missing one leaves a slot empty."""
    waiting = Waiting(max_passes=1)
    waiting.offer("large", tokens=100)
    waiting.claim(slots=1, kv_tokens=50)
    waiting.offer("too large as well", tokens=60)
    assert not waiting.queue.is_woken(DRIVER)
    waiting.claim(slots=0, driver=OTHER)
    waiting.now_us += 10 * SECOND_US  # the want is too old for a hand-over
    waiting.offer("small")
    assert waiting.queue.is_woken(DRIVER)
    assert waiting.take(kv_tokens=50) == ["small"]
    waiting.claim(slots=1, kv_tokens=50)
    waiting.offer("small too")
    assert not waiting.queue.is_woken(DRIVER)


def test_passes_count_anew_once_an_entry_has_been_given_out() -> None:
    """It waits a second time, and what it suffered the first time is over."""
    waiting = Waiting(max_passes=1)
    waiting.offer("large", tokens=100)
    waiting.offer("small0")
    assert waiting.take(kv_tokens=50) == ["small0"]
    assert waiting.take(kv_tokens=100) == ["large"]
    waiting.queue.give_back(DRIVER, ["large"], waiting.now_us)
    waiting.offer("small1")
    waiting.offer("small2")
    assert waiting.take(kv_tokens=50) == ["small1"]
    assert waiting.take(kv_tokens=50) == []


def test_passing_goes_on_to_the_same_tenant_and_then_to_the_next() -> None:
    """Whose turn it is stays so for as long as something of theirs fits."""
    waiting = Waiting()
    waiting.offer("a large", tenant="a", tokens=100)
    waiting.offer("b small", tenant="b")
    waiting.offer("a small", tenant="a")
    assert waiting.take(slots=2, kv_tokens=50) == ["a small", "b small"]


# --- exchange ---------------------------------------------------------------------------------------------------------


def test_a_better_head_takes_the_place_of_the_weakest_when_memory_is_short() -> None:
    """Free slots are of no use to it while a worse sequence holds the memory."""
    waiting = Waiting()
    waiting.offer("low", BATCH, tokens=80)
    (low,) = waiting.claim()
    waiting.offer("high", INTERACTIVE, tokens=100)
    (high,) = waiting.claim(slots=3, kv_tokens=20, weakest=low)
    assert (high.entry.entry_id, high.victim_id) == ("high", "low")
    assert waiting.queue.stats().by_class == (("batch", 1, 80),)


def test_an_exchange_must_bring_memory_enough() -> None:
    """Else the victim would have paused for nothing."""
    waiting = Waiting()
    waiting.offer("low", BATCH, tokens=80)
    (low,) = waiting.claim()
    waiting.offer("high", INTERACTIVE, tokens=100)
    assert waiting.claim(slots=3, kv_tokens=19, weakest=low) == ()


def test_a_head_that_fits_displaces_nobody() -> None:
    """Naming the weakest is an offer to give, not a wish."""
    waiting = Waiting()
    waiting.offer("low", BATCH)
    (low,) = waiting.claim()
    waiting.offer("high", INTERACTIVE)
    (high,) = waiting.claim(slots=1, kv_tokens=50, weakest=low)
    assert high.victim_id is None


def test_an_exchange_ends_the_want() -> None:
    """What room is left only the driver knows; an offer must not be handed to room that is gone."""
    waiting = Waiting()
    waiting.offer("low", BATCH, tokens=80)
    (low,) = waiting.claim()
    waiting.offer("high", INTERACTIVE, tokens=100)
    waiting.claim(slots=3, kv_tokens=20, weakest=low)
    assert waiting.offer("next", INTERACTIVE, tokens=1) is Offered.QUEUED


def test_only_the_first_entry_may_displace() -> None:
    """What it would pass over is better, and should have the memory if anybody has."""
    waiting = Waiting()
    waiting.offer("low", BATCH, tokens=30)
    (low,) = waiting.claim()
    waiting.offer("high and large", INTERACTIVE, tokens=100)
    waiting.offer("high and small", INTERACTIVE, tokens=40)
    assert waiting.claim(slots=1, kv_tokens=20, weakest=low) == ()


# --- guaranteed shares ------------------------------------------------------------------------------------------------


def shared_out(waiting: Waiting, slots: int, *short: tuple[str, int], kv_tokens: int | None = None) -> list[str]:
    asked = Asked(slots=slots, kv_tokens=kv_tokens, short=short)
    return [claim.entry.entry_id for claim in waiting.queue.claim(DRIVER, asked, waiting.now_us)]


def test_a_class_under_its_share_goes_first_for_as_many_slots_as_it_is_short_of() -> None:
    """A guarantee that waits for its turn is none; and one that takes more is a priority."""
    waiting = Waiting()
    for number in range(LOOK_AHEAD + 1):
        waiting.offer(f"high{number}", INTERACTIVE)
    for number in range(3):
        waiting.offer(f"low{number}")
    assert shared_out(waiting, 4, (BATCH.name, 2)) == ["low0", "low1", "high0", "high1"]


def test_a_share_that_nobody_waits_for_is_lent() -> None:
    """Slots do not stay empty for a class that has nothing to run."""
    waiting = Waiting()
    waiting.offer("high", INTERACTIVE)
    assert shared_out(waiting, 1, (BATCH.name, 1)) == ["high"]


def test_what_was_lent_is_given_back_with_the_next_free_slot() -> None:
    """An offer of the class that is short meets a standing want ahead of what it would have to wait for."""
    waiting = Waiting()
    waiting.offer("large", INTERACTIVE, tokens=100)
    assert shared_out(waiting, 1, (BATCH.name, 1), kv_tokens=50) == []
    assert waiting.offer("low") is Offered.HANDED


def test_a_class_that_is_short_but_does_not_fit_leaves_the_slot_to_others() -> None:
    """A guarantee of slots is none of memory."""
    waiting = Waiting(max_passes=0)
    waiting.offer("high", INTERACTIVE)
    waiting.offer("low and large", BATCH, tokens=100)
    assert shared_out(waiting, 2, (BATCH.name, 1), kv_tokens=50) == ["high"]


def test_a_share_keeps_a_head_from_memory_a_bounded_number_of_times() -> None:
    """Guaranteed slots are no guarantee of memory: whoever needs much of it must get it some day."""
    waiting = Waiting(max_passes=2)
    waiting.offer("large", INTERACTIVE, tokens=90)
    for number in range(5):
        waiting.offer(f"short{number}", BATCH, tokens=20)
    taken = [shared_out(waiting, 1, ("batch", 1), kv_tokens=100) for _ in range(3)]
    assert taken == [["short0"], ["short1"], ["large"]]


def test_a_share_that_leaves_room_for_the_head_passes_nobody() -> None:
    """Then it costs the head a slot's wait, which is what the share is for."""
    waiting = Waiting(max_passes=1)
    waiting.offer("large", INTERACTIVE, tokens=50)
    for number in range(4):
        waiting.offer(f"short{number}", BATCH, tokens=20)
    taken = [shared_out(waiting, 1, ("batch", 1), kv_tokens=100) for _ in range(3)]
    assert taken == [["short0"], ["short1"], ["short2"]]
