"""Files that appear in a folder all together when everything has succeeded, or not at all."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


class Staging:
    """Files on their way to ``folder``, written beside their places. Names may have folders in them."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        self._folder = folder
        self._scratch = scratch
        self._names: list[str] = []

    def create(self, name: str) -> BinaryIO:
        """A new file to write to; the caller closes it. Raises ``OSError`` where a folder is in its place."""
        if (self._folder / name).is_dir():
            raise IsADirectoryError(f"{self._folder / name} is a folder")
        path = self._scratch / name
        path.parent.mkdir(parents=True, exist_ok=True)
        self._names.append(name)
        return path.open("wb")

    def write(self, name: str, content: bytes) -> None:
        with self.create(name) as file:
            file.write(content)

    def publish(self) -> None:
        for name in self._names:
            (self._folder / name).parent.mkdir(exist_ok=True)
        for name in self._names:
            (self._scratch / name).replace(self._folder / name)


@contextmanager
def staged(folder: Path) -> Iterator[Staging]:
    """A place for files that go to ``folder`` when the block ends well. Otherwise nothing is left, no folder either.

    Raises ``OSError`` when the folder cannot be made or written to.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".simulate-") as scratch:
            staging = Staging(folder, Path(scratch))
            yield staging
            staging.publish()
    except BaseException:
        for path in made:
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()
        raise
