"""Which class a request gets, and how it is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admission.classes import BATCH, DEFAULT_CLASSES, INTERACTIVE, STANDARD, PriorityClass
from gateway.class_table import CLASS_CHOICE_HEADER, ClassTable
from gateway.errors import Reason, Refused
from tests.gateway.conftest import Gateway, ServeGateway
from tests.gateway.fakes import MODEL
from tests.gateway.talk import PATHS, body_for

TABLE = ClassTable(DEFAULT_CLASSES)


def chosen(*names: str, priority: int | None = None, service_tier: str | None = None) -> PriorityClass:
    return TABLE.choose(names=names, priority=priority, service_tier=service_tier)


@pytest.mark.parametrize(
    ("tier", "expected"),
    [
        (None, STANDARD),
        ("auto", STANDARD),
        ("default", STANDARD),
        ("standard", STANDARD),
        ("priority", INTERACTIVE),
        ("flex", BATCH),
    ],
)
def test_the_service_tier_selects_the_class(tier: str | None, expected: PriorityClass) -> None:
    """OpenAI's own parameter, so that clients need no other."""
    assert chosen(service_tier=tier) is expected


@pytest.mark.parametrize(
    ("priority", "expected"),
    [
        (-(1 << 31), INTERACTIVE),
        (-1, INTERACTIVE),
        (0, STANDARD),
        (1, BATCH),
        ((1 << 31) - 1, BATCH),
    ],
)
def test_an_integer_priority_falls_into_the_range_of_one_class(priority: int, expected: PriorityClass) -> None:
    """Clients of vLLM send it: lower is more urgent, and 0 is their default."""
    assert chosen(priority=priority) is expected


@given(least=st.integers(-(1 << 31), (1 << 31) - 1), more=st.integers(0, 1 << 31))
def test_a_more_urgent_number_never_gets_a_lesser_class(least: int, more: int) -> None:
    """Whatever the ranges are, the order of the numbers is kept."""
    assert chosen(priority=least).rank <= chosen(priority=least + more).rank


def test_the_header_counts_before_the_priority_and_that_before_the_tier() -> None:
    """A proxy sets a header for applications that it cannot change; the plainest word comes last."""
    assert chosen("batch", priority=-5, service_tier="priority") is BATCH
    assert chosen(priority=5, service_tier="priority") is BATCH


@pytest.mark.parametrize("names", [("urgent",), ("",), ("batch", "batch"), ("Batch",)])
def test_an_unknown_class_is_refused_with_the_known_ones(names: Sequence[str]) -> None:
    """Served in another class than meant, nobody would notice."""
    with pytest.raises(Refused, match="interactive, standard, batch") as refused:
        chosen(*names)
    assert (refused.value.reason, refused.value.param) == (Reason.INVALID_VALUE, CLASS_CHOICE_HEADER)


def test_a_tier_that_no_class_stands_for_is_refused() -> None:
    """Where there is no better class, none can be promised."""
    with pytest.raises(Refused, match="auto or one of default") as refused:
        ClassTable([replace(STANDARD, max_priority=None)]).choose(names=(), priority=None, service_tier="flex")
    assert refused.value.param == "service_tier"


def test_of_several_classes_of_a_tier_the_best_is_its_meaning() -> None:
    """The others are chosen by name or priority."""
    bulk = replace(BATCH, name="bulk", rank=3)
    table = ClassTable([bulk, replace(BATCH, max_priority=5), STANDARD])
    assert table.choose(names=(), priority=None, service_tier="flex").name == "batch"
    assert table.choose(names=(), priority=6, service_tier=None) is bulk


@pytest.mark.parametrize(
    "classes",
    [
        [],
        [replace(BATCH)],
        [INTERACTIVE, replace(STANDARD, name="interactive"), BATCH],
        [INTERACTIVE, replace(STANDARD, rank=0), BATCH],
        [INTERACTIVE, replace(STANDARD, max_priority=-1), BATCH],
        [INTERACTIVE, replace(STANDARD, max_priority=None), BATCH],
        [INTERACTIVE, STANDARD, replace(BATCH, max_priority=9)],
    ],
)
def test_a_table_in_which_a_request_could_lose_its_way_is_refused(classes: list[PriorityClass]) -> None:
    """Every number and no word at all must find exactly one class."""
    with pytest.raises(ValueError, match=r"class|max-priority"):
        ClassTable(classes)


@pytest.mark.parametrize("path", PATHS)
async def test_an_answer_says_the_class_that_was_used(gateway: Gateway, path: str) -> None:
    """In OpenAI's field, in every chunk of a stream as well, and by our name in a header."""
    headers = {CLASS_CHOICE_HEADER: "interactive"}
    whole = await gateway.post(path, body_for(path, service_tier="flex"), headers=headers)
    assert (whole.headers["x-sluicegate-class"], whole.json["service_tier"]) == ("interactive", "priority")
    options = {"stream": True, "stream_options": {"include_usage": True}, "priority": 7}
    stream = await gateway.post(path, body_for(path, **options))
    assert stream.headers["x-sluicegate-class"] == "batch"
    assert {chunk["service_tier"] for chunk in stream.chunks} == {"flex"}
    assert [stream.request.class_name for stream in gateway.dispatcher.streams] == ["interactive", "batch"]


async def test_an_unknown_class_is_a_400_over_http(gateway: Gateway) -> None:
    """Before anything is tokenised or queued."""
    reply = await gateway.post(PATHS[0], body_for(PATHS[0]), headers={CLASS_CHOICE_HEADER: "urgent"})
    assert (reply.status, reply.error["param"]) == (400, CLASS_CHOICE_HEADER)
    assert gateway.dispatcher.streams == []


async def test_the_official_sdk_reads_the_tier(gateway: Gateway) -> None:
    """As a field of its own models, of answers and of chunks."""
    messages = [{"role": "user", "content": "Hi"}]
    answer = await gateway.sdk.chat.completions.create(model=MODEL, messages=messages, service_tier="flex")  # type: ignore[arg-type]
    assert answer.service_tier == "flex"
    stream = await gateway.sdk.chat.completions.create(
        model=MODEL,
        messages=messages,  # type: ignore[arg-type]
        service_tier="priority",
        stream=True,
    )
    assert {chunk.service_tier async for chunk in stream} == {"priority"}


async def test_a_class_may_bring_a_deadline_of_its_own(serve: ServeGateway) -> None:
    """For clients that say nothing; an earlier one of theirs counts all the same."""
    gateway = await serve(classes=[replace(STANDARD, max_priority=None, default_deadline_us=60_000_000)])
    await gateway.complete()
    await gateway.complete(deadline_ms=90_000)
    await gateway.complete(deadline_ms=5_000)
    deadlines = [stream.request.deadline_us or 0 for stream in gateway.dispatcher.streams]
    assert deadlines[1] - deadlines[0] < 30_000_000
    assert deadlines[2] < deadlines[0]
