"""An explanation says what happened to a request, in the order in which it did."""

from __future__ import annotations

from dataclasses import replace

import pytest

from admission.queue import Offered
from admission.record.clocks import Clocks
from admission.record.entries import LogEntry, OfferMade
from admission.record.explain import Explainer, UnknownRequest
from admission.record.tell import tell
from tests.admission.record.doors import Door
from tests.admission.record.golden import golden_logs
from tests.admission.record.recorded import LIMITS, Recording


def explainer_of(doors: list[Door], recordings: list[Recording] | None = None) -> Explainer:
    """All clocks of these logs are one."""
    logs = [door.entries for door in doors]
    drivers: list[list[LogEntry]] = [[e for part in each.segments for e in part] for each in recordings or []]
    return Explainer(logs, [tell(driver) for driver in drivers], Clocks(logs))


def told(explainer: Explainer, request: str) -> list[str]:
    return [sentence.text for each in explainer.request(request) for sentence in each.sentences]


def test_a_request_that_found_the_queue_full_is_told_so() -> None:
    """F of the baseline scenario: which limit, how large it is, and who was in the way."""
    (explanation,) = golden_logs().explainer().request("F")
    (sentence,) = explanation.sentences
    assert sentence.text == "arrived, and was refused: the queue, of 2 places, was full (A and E waited)"
    assert sentence.at_us == 2


def test_who_was_in_the_way_of_a_refusal_is_named_only_if_all_are_known() -> None:
    """The log of a killed gateway ends before its last acts: then the store's own number is all that is true."""
    door = Door()
    door.offer("a", 10)
    door.offer("b", 20)
    door.offer("c", 30, Offered.QUEUE_FULL)
    refused = door.entries[-1]
    assert isinstance(refused, OfferMade)
    for waited, words in ((2, "(a and b waited)"), (1, "(1 waited)")):
        door.entries[-1] = replace(refused, waiting_requests=waited)
        assert told(explainer_of([door]), "c") == [
            f"arrived, and was refused: the queue, of 2 places, was full {words}"
        ]


def test_a_request_that_was_preempted_is_told_by_whom_and_what_was_kept() -> None:
    """A of the baseline scenario: C took its slot at iteration 1, and it went on at iteration 3 with three tokens."""
    (explanation,) = golden_logs().explainer().request("A")
    assert explanation.about == "A: class normal, prompt of 6 tokens, output of at most 3 tokens"
    assert [(sentence.first, sentence.last, sentence.text) for sentence in explanation.sentences] == [
        (None, None, "arrived, and was handed to a driver that wanted it at once"),
        (0, 0, "started in slot 0"),
        (0, 0, "prefill of 3 tokens"),
        (1, 1, "C (high) preempted it, as every slot was taken; it waits"),
        (3, 3, "resumed in slot 1, with 3 prompt tokens kept"),
        (3, 3, "prefill of 3 tokens, and a token of output"),
        (4, 5, "decoded 2 tokens"),
        (6, 6, "finished: it had all the output that it may have"),
    ]


def test_a_request_that_nobody_knows_is_said_to_be_unknown() -> None:
    """A typing mistake must not look like a request to which nothing happened."""
    with pytest.raises(UnknownRequest):
        golden_logs().explainer().request("Z")


def test_a_request_is_found_by_each_of_its_ids() -> None:
    """What a client has at hand may be its own id, which the header repeated, or that of the answer."""
    door = Door()
    door.offer("s0", 10, request="abc")
    door.answer("abc", 900_000, "completed", 200, client="my-own-id")
    explainer = explainer_of([door])
    assert told(explainer, "abc") == told(explainer, "my-own-id") == told(explainer, "chatcmpl-abc") != []


def test_what_was_refused_before_the_queue_is_told_from_its_answer() -> None:
    """Nothing else knows it."""
    door = Door()
    door.answer("abc", 900_000, "context_length_exceeded", 400)
    (explanation,) = explainer_of([door]).request("abc")
    assert explanation.about == "abc: class standard"
    assert [s.text for s in explanation.sentences] == ["the client was told: context_length_exceeded (HTTP 400)"]


@pytest.mark.parametrize(
    ("outcome", "status", "words"),
    [
        ("completed", 200, "the client had its whole answer, 0 tokens, 0.500 s after it asked"),
        ("cancelled", 499, "the client had left, 0.500 s after it asked; 0 tokens had come for it"),
        ("shed", 429, "the client was told: shed (HTTP 429)"),
        ("worker_lost", 200, "the answer ended with an error after 0 tokens: worker_lost"),
    ],
)
def test_what_the_client_was_answered_is_told_last(outcome: str, status: int, words: str) -> None:
    """That is what somebody saw and asks about."""
    door = Door()
    door.offer("s0", 10, request="abc")
    door.answer("abc", 900_000, outcome, status)
    assert told(explainer_of([door]), "abc")[-1] == words


def test_choices_are_told_apart() -> None:
    """Each has its own way through the queue and the slots."""
    door = Door()
    door.offer("s0", 10, Offered.HANDED, request="abc", choice=0)
    door.offer("s1", 10, request="abc", choice=1)
    first, second = explainer_of([door]).request("abc")
    assert (first.name, second.name) == ("abc (choice 0)", "abc (choice 1)")
    assert "handed" in first.sentences[0].text
    assert "waited" in second.sentences[0].text


def test_a_request_that_moved_is_told_at_both_drivers_in_order() -> None:
    """Its sequence has another id there: its client knows of one request."""
    door = Door()
    lost, taken = (Recording(limits=replace(LIMITS, kv_blocks=30)) for _ in range(2))
    door.offer("s0", 5, Offered.HANDED, request="abc", choice=2)
    lost.claim("s0", prompt=4, output=8)
    lost.report()
    lost.end()
    taken.now = 1_000
    door.offer("s9", 1_005, Offered.HANDED, request="abc", choice=2, emitted=2)
    taken.claim("s9", prompt=4, output=8)
    taken.run()
    taken.end()
    (explanation,) = explainer_of([door], [lost, taken]).request("abc")
    assert explanation.sequence_ids == ("s0", "s9")
    texts = [sentence.text for sentence in explanation.sentences]
    assert [sentence.at_us for sentence in explanation.sentences] == sorted(s.at_us for s in explanation.sentences)
    at = texts.index
    assert (
        at("arrived, and was handed to a driver that wanted it at once")
        < at("its driver stopped, or lost the worker, before it had ended")
        < at("went on elsewhere with 2 tokens of its output, and was handed to a driver that wanted it at once")
        < at("finished: it had all the output that it may have")
    )


def test_who_was_shed_is_told_for_whom() -> None:
    """It had been told that it waits."""
    door = Door()
    door.offer("a", 10)
    door.offer("b", 20, shed=("a",))
    assert told(explainer_of([door]), "a")[-1] == "was shed: b (standard) took its place in the queue"


def test_who_waits_behind_many_is_told_some_of_them() -> None:
    """A sentence of two hundred names is none."""
    door = Door()
    for number in range(6):
        door.offer(f"r{number}", 10 + number)
    assert told(explainer_of([door]), "r5") == ["arrived, and waited behind r0, r1, r2 and 2 others"]
    assert told(explainer_of([door]), "r4") == ["arrived, and waited behind r0, r1, r2 and r3"]
    assert told(explainer_of([door]), "r0") == ["arrived, and waited first in line"]


def test_the_limit_that_held_a_waiting_request_is_told() -> None:
    """Slots or memory: an operator adds one or the other."""
    door, recording = Door(), Recording(limits=replace(LIMITS, kv_blocks=12))
    for number in range(3):
        recording.claim(f"s{number}", prompt=4, output=8)
        recording.report()
    door.offer("late", recording.now)
    recording.run()
    recording.end()
    assert told(explainer_of([door], [recording]), "late") == [
        "arrived, and waited first in line, as every slot was taken"
    ]


def test_a_gap_is_told_to_whom_it_concerns() -> None:
    """What is not known is said, not left out."""
    recording = Recording(limits=replace(LIMITS, kv_blocks=30))
    recording.claim("s0", prompt=3, output=12)
    recording.rotate()
    recording.run_for(3)
    recording.segments.pop()
    recording.rotate(is_whole=False)
    recording.run()
    recording.end()
    assert any("was not recorded" in text for text in told(explainer_of([Door()], [recording]), "s0"))


def test_a_request_whose_driver_was_lost_while_it_waited_is_told_so() -> None:
    """Else it would start anew elsewhere without a word why."""
    door = Door()
    door.offer("a", 10)
    door.give("a", now=20)
    door.give_back("a", now=30)
    door.forget("a", now=40)
    assert told(explainer_of([door]), "a")[-1] == "its driver was gone: it waits for any other"


def test_where_a_drivers_log_ends_early_is_told() -> None:
    """A killed gateway, or one that still runs: else a life would seem to stop in the middle of nothing."""
    recording = Recording()
    recording.claim("s0", prompt=4, output=9)
    recording.claim("s1", prompt=4, output=1)
    recording.run_for(3)
    explainer = explainer_of([Door()], [recording])
    assert told(explainer, "s0")[-1] == "here its driver's log ends: what came then is not in it"
    assert told(explainer, "s1")[-1] == "finished: it had all the output that it may have"


def test_a_sequence_that_no_door_knows_is_told_from_its_driver() -> None:
    """The other gateway's logs may not be at hand."""
    recording = Recording()
    recording.claim("s0", prompt=3, output=2)
    recording.run()
    recording.end()
    assert told(explainer_of([], [recording]), "s0")[-1] == "finished: it had all the output that it may have"
