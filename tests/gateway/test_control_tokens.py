"""Control tokens in the words of users stay words."""

from __future__ import annotations

import pytest

from gateway.control_tokens import ControlTokens, Piece, control_literals, unused_markers

TOKENS = ControlTokens(["<|end|>", "<|end|>!", "</s>"])
MARKERS = ("[", "]")


def pieces(rendered: str) -> list[tuple[str, bool]]:
    return [(piece.text, piece.literal) for piece in TOKENS.pieces(rendered, MARKERS)]


def test_marked_literals_are_the_users_and_others_the_templates() -> None:
    """One text, two owners."""
    rendered = f"<|end|>{TOKENS.mark('a<|end|>b', MARKERS)}<|end|>"
    assert pieces(rendered) == [("<|end|>a", False), ("<|end|>", True), ("b<|end|>", False)]


def test_one_marker_is_enough() -> None:
    """A template that trims or splits may take the other."""
    assert pieces("a[<|end|>") == [("a", False), ("<|end|>", True)]
    assert pieces("<|end|>]a") == [("<|end|>", True), ("a", False)]


def test_a_literal_of_the_template_before_a_users_is_not_taken_for_it() -> None:
    """Both stand side by side when a message begins with a literal."""
    assert pieces("<|end|>[</s>]") == [("<|end|>", False), ("</s>", True)]


def test_the_longer_literal_is_found_where_one_contains_another() -> None:
    """As the tokenizer itself matches."""
    assert TOKENS.mark("<|end|>!", MARKERS) == "[<|end|>!]"


def test_an_open_end_is_cut_from_what_follows() -> None:
    """The next text could complete a literal."""
    assert TOKENS.mark("a <|en", MARKERS) == "a <|en]"
    assert pieces("a <|en]d|>") == [("a <|en", False), ("d|>", False)]


@pytest.mark.parametrize(("text", "guarded"), [("plain", False), ("a </s> b", True), ("a <", True), ("", False)])
def test_only_texts_with_literals_leave_the_common_path(text: str, guarded: bool) -> None:
    """Ordinary text must be encoded just as without a guard."""
    assert TOKENS.occur_in([text]) is guarded


def test_without_control_tokens_there_is_nothing_to_guard() -> None:
    """Some base models have none."""
    none = ControlTokens([])
    assert not none.occur_in(["<|end|>"])
    assert list(none.pieces("a", MARKERS)) == [Piece(text="a", literal=False)]


def test_markers_are_characters_that_the_conversation_does_not_have() -> None:
    """Else a client could bring its own."""
    first = unused_markers(["plain"])
    assert first is not None
    second = unused_markers(["".join(first)])
    assert second is not None
    assert set(first).isdisjoint(second)
    assert unused_markers(["".join(map(chr, range(0xF0000, 0xFFFFE)))]) is None


def test_special_tokens_and_those_the_template_writes_are_guarded() -> None:
    """Fine-tunes add turn tokens without calling them special."""
    added = [
        {"content": "<s>", "special": True},
        {"content": "<|turn|>", "special": False},
        {"content": "<tool>", "special": False},
        {"content": "  ", "special": True},
    ]
    assert control_literals(added, "{{ '<|turn|>' }}") == ["<s>", "<|turn|>"]
