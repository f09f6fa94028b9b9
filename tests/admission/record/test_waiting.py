"""The queue of a cluster, from the logs of its doors."""

from __future__ import annotations

from admission.queue import Offered, Withdrawn
from admission.record.clocks import Clocks
from admission.record.waiting import QueueMoment, queues
from tests.admission.record.doors import Door


def follow(*doors: Door) -> list[QueueMoment]:
    logs = [door.entries for door in doors]
    return [moment for queue in queues(logs, Clocks(logs)) for moment in queue]


def waiting_after(*doors: Door) -> list[str]:
    waiting: dict[str, None] = {}
    for moment in follow(*doors):
        for name in moment.left:
            del waiting[name]
        waiting |= dict.fromkeys(moment.joined)
    return list(waiting)


def test_an_offer_is_told_who_stood_better() -> None:
    """By score: a class with a head start is ahead of what came before it."""
    door = Door()
    door.offer("late", 10)
    door.offer("later", 20)
    door.offer("first", 30, head_start=100)
    door.offer("last", 40)
    assert [moment.others for moment in follow(door)] == [(), ("late",), (), ("first", "late", "later")]


def test_what_was_refused_met_everybody() -> None:
    """It is the whole queue that was in its way, and it does not join it."""
    door = Door()
    door.offer("a", 10)
    door.offer("b", 20)
    door.offer("c", 30, Offered.QUEUE_FULL, head_start=100)
    assert follow(door)[-1].others == ("a", "b")
    assert waiting_after(door) == ["a", "b"]


def test_acts_of_two_gateways_are_put_in_the_order_of_the_store() -> None:
    """Their clocks differ, and each logs an act when its reply has come: the number decides."""
    one, other = Door("g0"), Door("g1", behind_us=7_000_000)
    other.acts = one.acts
    one.offer("a", 10)
    other.offer("b", 12)
    other.give("a", now=14)
    one.offer("c", 13)
    one.entries[1], one.entries[2] = one.entries[2], one.entries[1]  # replies crossed
    assert [moment.act.act for moment in follow(one, other)] == [1, 2, 3, 4]
    assert waiting_after(one, other) == ["b", "c"]
    assert [moment.at_us for moment in follow(one, other)] == [10, 12, 14, 13]


def test_a_refusal_comes_after_the_act_whose_number_it_has() -> None:
    """It changed nothing, and found what that act had left."""
    one, other = Door("g0"), Door("g1")
    other.acts = one.acts
    one.offer("a", 10)
    one.offer("b", 20)
    other.offer("c", 30, Offered.QUEUE_FULL)
    assert follow(other, one)[-1].others == ("a", "b")


def test_a_victim_waits_where_it_stood() -> None:
    """It keeps its score, and so comes before those that were offered after it."""
    door = Door()
    door.offer("victim", 10, Offered.HANDED)
    door.offer("a", 20)
    door.offer("better", 30, head_start=100)
    door.give("better", now=40, victims=("victim",))
    door.offer("b", 50)
    assert follow(door)[3].joined == ("victim",)
    assert follow(door)[-1].others == ("victim", "a")


def test_what_was_given_back_waits_and_what_ended_does_not() -> None:
    """Every way into the queue and out of it."""
    door = Door()
    for name in ("a", "b", "c", "d"):
        door.offer(name, 10)
    door.give("a", "b", now=20)
    door.give_back("b", now=30)
    door.settle("a", now=40)
    door.withdraw("c", 50)
    door.offer("e", 60, shed=("d",))
    door.withdraw("b", 70, Withdrawn.CLAIMED)  # a driver has it by then: nothing left the queue
    assert waiting_after(door) == ["b", "e"]


def test_an_offer_that_was_repeated_waits_once() -> None:
    """The reply to the first one was lost, and by the second one it had been given out."""
    door = Door()
    door.offer("a", 10)
    door.give("a", now=20)
    door.offer("a", 30)
    assert waiting_after(door) == []


def test_what_was_offered_before_the_log_began_stands_first() -> None:
    """Its offer was deleted with an old segment, or is in a log that is not here."""
    door = Door()
    door.offer("a", 10)
    door.give_back("old", now=20)
    door.offer("b", 30)
    assert follow(door)[-1].others == ("old", "a")


def test_queues_of_two_models_are_two() -> None:
    """Each model has its own line, and its own numbers."""
    door = Door()
    door.offer("a", 10)
    logs = [door.entries]
    assert len(list(queues(logs, Clocks(logs)))) == 1


def test_of_many_only_the_first_are_named() -> None:
    """A queue of thousands was gone through at every offer, and a picture of a minute took as long."""
    door = Door()
    for number in range(9):
        door.offer(f"s{number}", number)
    met = follow(door)[-1]
    assert met.others == ("s0", "s1", "s2", "s3")
    assert met.num_others == 8


def test_what_a_lost_driver_leaves_waits_again() -> None:
    """What it had paused waited all the time; what it never received does again; what it held is gone."""
    door = Door()
    for number, name in enumerate(("paused", "unseen", "held")):
        door.offer(name, 10 + number)
    door.give("paused", "unseen", "held", now=20)
    door.give_back("paused", now=30)
    door.forget("paused", "unseen", now=40)
    assert waiting_after(door) == ["paused", "unseen"]
    assert follow(door)[-1].joined == ("unseen",)


def test_a_store_that_lost_its_data_leaves_nobody_waiting() -> None:
    """Else those who were lost would stand before everybody who comes after them, for ever."""
    door = Door()
    door.offer("a", 10)
    door.offer("b", 20)
    door.acts[0] = 5_000_000
    door.offer("c", 30)
    assert follow(door)[-1].left == ("a", "b")
    assert follow(door)[-1].others == ()
    assert waiting_after(door) == ["c"]
