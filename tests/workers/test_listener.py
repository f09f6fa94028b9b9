"""The worker's own socket: its user's alone, never stolen, never in the way of the next worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.workers.running_worker import Start
from workers.listener import ListenError, listen, stop_listening
from workers.wire import (
    UnixAddress,
)


def test_the_socket_is_its_users_alone(start: Start) -> None:
    """F03: whoever can connect can run plans."""
    assert start().path.stat().st_mode & 0o777 == 0o600


def test_a_live_workers_socket_is_not_taken(start: Start) -> None:
    """Two workers under one address would each get half of the connections."""
    worker = start()
    with pytest.raises(ListenError, match="another process does"):
        listen(worker.address)


def test_a_socket_left_behind_is_replaced(tmp_path: Path) -> None:
    """A worker that was killed must be able to start again."""
    address = UnixAddress(str(tmp_path / "left.sock"))
    listen(address).close()
    stop_listening(listen(address), address)
    assert not Path(address.path).exists()


def test_a_file_of_another_kind_is_not_replaced(tmp_path: Path) -> None:
    """A mistyped address must not delete somebody's file."""
    path = tmp_path / "notes.txt"
    path.write_text("keep")
    with pytest.raises(ListenError, match="a file of another kind"):
        listen(UnixAddress(str(path)))
    assert path.read_text() == "keep"
