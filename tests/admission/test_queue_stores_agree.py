"""One queue rule, two stores: whatever is done to both, both answer the same."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from admission.classes import SECOND_US
from admission.queue import ClassRule
from admission.standing import WaitingOrderName
from gateway.redis_server import RedisServer
from tests.admission.two_stores import CLASSES, DRIVERS, NUM_LONG_PAUSES, TENANTS, Offering, Stores
from tests.examples import examples

ORDERS = tuple(WaitingOrderName)
NUM_ACTS = 250  # of one long day

BUSY_DAY = {
    "offer": 20,
    "offer group": 10,
    "offer group again": 2,
    "offer again": 5,
    "offer past bounds": 6,
    "claim": 10,
    "claim in exchange": 15,
    "next handed": 10,
    "withdraw": 7,
    "settle": 7,
    "give back": 4,
    "act on any": 3,
    "forget driver": 1,
    "time passes": 6,
    "wants expire": 2,
}
QUIET_DAY = BUSY_DAY | {"offer": 12, "claim": 30, "claim in exchange": 5, "settle": 20, "give back": 1}


def test_memory_and_redis_answer_alike(redis_server: RedisServer) -> None:
    """The simulator decides on the memory store, the cluster on Redis: what is learnt of one must hold for the other.

    Hypothesis chooses, and shrinks a difference to the acts that make it.
    """
    run_state_machine_as_test(
        lambda: Stores(redis_server),
        settings=settings(
            max_examples=examples(40),
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )


@pytest.mark.parametrize("seed", range(max(len(ORDERS), examples(18))))
def test_memory_and_redis_answer_alike_on_a_long_day(redis_server: RedisServer, seed: int) -> None:
    """Full queues, hand-overs and exchanges in long succession: states that short sequences of acts hardly reach."""
    choose = random.Random(seed)
    stores = Stores(redis_server)
    stores.open_queues(
        max_requests=choose.randint(3, 8),
        max_tokens=choose.choice((None, 20)),
        max_bytes=choose.choice((None, 14)),
        max_passes=choose.randint(0, 3),
        order=ORDERS[seed % len(ORDERS)],
    )
    weights = QUIET_DAY if seed % 4 > 1 else BUSY_DAY
    try:
        for act in choose.choices(list(weights), list(weights.values()), k=NUM_ACTS):
            perform(act, stores, choose)
            stores.what_waits_is_the_same()
            stores.the_same_drivers_are_woken()
    finally:
        stores.teardown()


def some_offering(choose: random.Random) -> Offering:
    return Offering(
        cls=choose.choice(CLASSES),
        tenant=choose.choice(TENANTS),
        tokens=choose.randint(1, 5),
        num_bytes=choose.randint(0, 3),
        deadline_in_us=choose.choice((None, SECOND_US, 2 * SECOND_US)),
        rule=ClassRule(
            max_requests=choose.choice((None, None, 2)),
            max_tokens=choose.choice((None, None, 8)),
            sheds=choose.random() < 0.7,
            may_be_shed=choose.random() < 0.7,
            preempts=choose.random() < 0.9,
        ),
    )


def perform(act: str, stores: Stores, choose: random.Random) -> None:
    """One act with arguments by chance; time passes instead where there is nothing to act on."""
    driver, back = choose.choice(DRIVERS), choose.randrange(8)
    short = choose.choice(((), (), ((choose.choice(CLASSES).name, choose.randint(1, 2)),)))
    held, offered = any(stores.has.values()), bool(stores.entries)
    possible: dict[str, tuple[bool, Callable[[], None]]] = {
        "offer": (
            True,
            lambda: stores.offer([some_offering(choose)]),
        ),
        "offer again": (offered, lambda: stores.offer_again(back)),
        "offer group": (
            True,
            lambda: stores.offer_group(
                some_offering(choose),
                choose.choices((1, 2, 5), k=choose.randint(1, 5)),
                choose.choice((*[None] * 9, 1)),
            ),
        ),
        "offer group again": (bool(stores.groups), lambda: stores.offer_group_again(back)),
        "offer past bounds": (True, lambda: stores.offer_past_bounds(some_offering(choose))),
        "claim": (True, lambda: stores.claim(driver, choose.randint(0, 2), choose.choice((None, 4, 8)), short)),
        "claim in exchange": (
            held,
            lambda: stores.claim_in_exchange(back, choose.choice((0, 0, 1)), choose.choice((None, 0, 2)), short),
        ),
        "next handed": (True, lambda: stores.next_handed(driver)),
        "withdraw": (offered, lambda: stores.withdraw(back)),
        "settle": (held, lambda: stores.settle(back)),
        "give back": (held, lambda: stores.give_back(back)),
        "act on any": (
            offered,
            lambda: stores.act_on_any(driver, [back, back + 1], choose.choice(("settle", "give back"))),
        ),
        "forget driver": (held, lambda: stores.forget_driver(back)),
        "wants expire": (stores.long_pauses < NUM_LONG_PAUSES, stores.wants_expire),
    }
    is_possible, do = possible.get(act, (False, stores.wants_expire))
    if is_possible:
        do()
    else:
        stores.time_passes(choose.choice((0, 1, SECOND_US // 10)))
