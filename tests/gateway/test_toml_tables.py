"""Files of named tables: strict, bounded, and every mistake with its place."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field

from gateway.toml_tables import Table, read_tables


class Pet(Table):
    legs: Annotated[int, Field(ge=0)]
    short_name: str = "none"


def read(tmp_path: Path, content: str | bytes) -> dict[str, Pet]:
    file = tmp_path / "pets.toml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_tables(file, Pet, most=3)


def problem(tmp_path: Path, content: str | bytes) -> str:
    with pytest.raises(ValueError, match=r"\w") as raised:
        read(tmp_path, content)
    return str(raised.value)


def test_tables_are_read_by_name_with_dashes_or_without(tmp_path: Path) -> None:
    """Settings are written both ways everywhere."""
    pets = read(tmp_path, '[cat]\nlegs = 4\nshort-name = "c"\n[bird-2]\nlegs = 2\nshort_name = "b"\n')
    assert [(name, pet.legs, pet.short_name) for name, pet in pets.items()] == [("cat", 4, "c"), ("bird-2", 2, "b")]


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    """Nobody should have to start a gateway once per mistake; and what was written may be a secret."""
    text = problem(tmp_path, '[cat]\nlegs = "secret"\nlag = 1\n[bird]\n')
    assert text == "cat.legs: should be a valid integer; cat.lag: is not a known field; bird.legs: is required"


@pytest.mark.parametrize("name", ['""', '"Upper"', '"a b"', '"7up"', f'"{"x" * 33}"', '"a:b"', '"../x"'])
def test_a_name_that_cannot_be_a_label_is_refused(tmp_path: Path, name: str) -> None:
    """Names stand in headers, in metrics, in logs and in keys of the store."""
    assert "is no name" in problem(tmp_path, f"[{name}]\nlegs = 4\n")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "has 0 tables; there may be 1 to 3"),
        ("[a]\n[b]\n[c]\n[d]\n", "has 4 tables; there may be 1 to 3"),
        ("cat = 4", "cat: should be a table, [cat]"),
        ("[cat", "is not valid TOML"),
        ("[cat]\n[cat]\n", "is not valid TOML"),
        (b"\xff", "is not valid TOML"),
    ],
)
def test_a_file_without_usable_tables_says_why(tmp_path: Path, content: str | bytes, words: str) -> None:
    """A sentence, not a traceback."""
    assert words in problem(tmp_path, content)


def test_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    """The commonest mistake of all."""
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        read_tables(tmp_path / "none.toml", Pet, most=3)
