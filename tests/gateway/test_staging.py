"""Files that appear together or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.staging import staged


def write_two(folder: Path) -> None:
    with staged(folder) as staging:
        staging.write("one", b"1")
        staging.write("two", b"2")


def fail_after_writing(folder: Path) -> None:
    with staged(folder) as staging:
        staging.write("one", b"new")
        raise RuntimeError


def test_nothing_is_in_place_before_the_end_and_everything_after(tmp_path: Path) -> None:
    """Whoever watches the folder sees whole results only."""
    with staged(tmp_path / "a" / "b") as staging:
        staging.write("one", b"1")
        staging.write("below/two", b"2")
        assert not (tmp_path / "a" / "b" / "one").exists()
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()) == [
        "a/b/below/two",
        "a/b/one",
    ]


def test_a_failure_leaves_old_files_as_they_were_and_no_new_folder(tmp_path: Path) -> None:
    """Half a result looks like one."""
    (tmp_path / "one").write_bytes(b"old")
    for folder in (tmp_path, tmp_path / "new"):
        with pytest.raises(RuntimeError):
            fail_after_writing(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["one"]
    assert (tmp_path / "one").read_bytes() == b"old"


def test_a_folder_in_the_place_of_a_file_is_found_before_anything_is_replaced(tmp_path: Path) -> None:
    """Renaming one file and failing at the next would leave a mixture."""
    (tmp_path / "two").mkdir()
    with pytest.raises(OSError, match="is a folder"):
        write_two(tmp_path)
    assert not (tmp_path / "one").exists()
