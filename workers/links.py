"""The link thread: every connection of a worker, in one selector loop beside the engine.

All state of the links lives in this thread; it and the engine exchange values through two queues. What messages mean is
decided in ``drivers.py``. Whatever goes wrong with a connection ends that connection, with one line in the log; only a
fault of this program ends the thread, and with it the worker.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue

import structlog

from workers.drivers import Drivers, Refused
from workers.link import Link, LinkLost, LinkTimes, Phase
from workers.listener import tune
from workers.mail import LinksFailed, Mail
from workers.wire import WIRE_VERSION, Challenge, Hello, Refusal, ReportMessage, TokenizerFiles, WireError

MAX_LINKS = 16
"""Connections at once: the driver, and the few gateways that ask whether they may drive."""

_MAX_REASON_CHARACTERS = 1000

_log = structlog.get_logger(__name__)


class Links:
    """Serves connections on ``listener`` from ``start`` until ``close``; what the engine has to do goes to ``mail``.

    ``introduce`` gives the ``Hello`` for the last epoch seen; ``tokenizer`` is sent to whoever asks for its digest.
    """

    def __init__(
        self,
        *,
        listener: socket.socket,
        mail: SimpleQueue[Mail],
        secret: bytes,
        introduce: Callable[[int], Hello],
        tokenizer: TokenizerFiles,
        times: LinkTimes,
    ) -> None:
        self._listener = listener
        self._mail = mail
        self._times = times
        self._drivers = Drivers(
            mail=mail, secret=secret, introduce=introduce, tokenizer=tokenizer, dismiss=self._refuse
        )
        self._links: dict[Link, None] = {}  # in the order of their arrival
        self._results: SimpleQueue[tuple[Link, ReportMessage | Refusal]] = SimpleQueue()
        self._closing = threading.Event()
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._thread = threading.Thread(target=self._run, name="links", daemon=True)

    # --- called by the engine's thread --------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Cut all connections and end the thread. The listener stays the caller's."""
        self._closing.set()
        self.wake()
        self._thread.join(timeout=5.0)

    def post(self, link: Link, result: ReportMessage | Refusal) -> None:
        """Send what came of a plan; a refusal ends the link. Dropped when the link is gone."""
        self._results.put((link, result))
        self.wake()

    def wake(self) -> None:
        """Have the link thread look at what has changed."""
        with contextlib.suppress(OSError):  # full of wake-ups that were not taken yet, or at its end
            self._wake_writer.send(b"\0")

    # --- the loop -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._selector.register(self._listener, selectors.EVENT_READ)
            self._selector.register(self._wake_reader, selectors.EVENT_READ)
            while not self._closing.is_set():
                self._turn()
        except Exception as error:  # noqa: BLE001 -- handed to the main thread, which fails with it
            self._mail.put(LinksFailed(error=error))
        finally:
            for link in self._links:
                link.close()
            for closeable in (self._selector, self._wake_reader, self._wake_writer):
                closeable.close()

    def _turn(self) -> None:
        for key, events in self._selector.select(self._timeout_s()):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj is self._wake_reader:
                self._send_results()
                for link in self._drivers.take_held():
                    self._guard(link, partial(self._drivers.introduce, now=time.monotonic()))
            elif key.data.is_open:  # another connection's message may just have ended this one
                self._guard(key.data, partial(self._serve, events=events))
        now = time.monotonic()
        for link in tuple(self._links):
            self._guard(link, partial(Link.check_time, now=now))

    def _timeout_s(self) -> float | None:
        deadlines = [link.deadline for link in self._links if link.deadline is not None]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def _guard(self, link: Link, act: Callable[[Link], None]) -> None:
        """Do something with one link; what goes wrong ends that link alone."""
        try:
            act(link)
        except Refused as error:
            self._refuse(link, str(error))
        except WireError as error:
            self._refuse(link, f"bad frame: {error}")
        except LinkLost as error:
            self._lose(link, str(error))
        if link.is_open:
            interest = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.has_output else 0)
            if self._selector.get_key(link.sock).events != interest:
                self._selector.modify(link.sock, interest, link)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # it went away again
        self._make_room()
        if len(self._links) >= MAX_LINKS:
            sock.close()
            _log.warning("connection_refused", reason=f"{MAX_LINKS} are open")
            return
        tune(sock)
        now = time.monotonic()
        link = Link(sock, self._times, now)
        self._links[link] = None
        self._selector.register(sock, selectors.EVENT_READ, link)
        self._guard(link, partial(Link.send, message=Challenge(version=WIRE_VERSION, nonce=link.nonce), now=now))

    def _make_room(self) -> None:
        """Strangers must not keep a gateway out: the oldest of them goes when all places are taken."""
        if len(self._links) >= MAX_LINKS:
            stranger = next((link for link in self._links if link.phase is Phase.PROVING), None)
            if stranger is not None:
                self._lose(stranger, "its place was needed")

    def _serve(self, link: Link, events: int) -> None:
        now = time.monotonic()
        if events & selectors.EVENT_WRITE:
            link.flush(now)
        if events & selectors.EVENT_READ:
            for message in link.read(now):
                if not link.is_open:
                    return
                self._drivers.handle(link, message, now)

    def _send_results(self) -> None:
        self._wake_reader.recv(4096)
        try:
            while True:
                link, result = self._results.get_nowait()
                if link.is_open:
                    self._guard(link, partial(self._send_result, result=result))
        except Empty:
            return

    def _send_result(self, link: Link, result: ReportMessage | Refusal) -> None:
        if isinstance(result, Refusal):
            raise Refused(result.message)
        link.in_flight -= 1
        link.send(result, time.monotonic())

    # --- ends ---------------------------------------------------------------------------------------------------------

    def _refuse(self, link: Link, reason: str) -> None:
        """Tell the peer why, as far as it listens, and cut."""
        with contextlib.suppress(LinkLost):  # then it will not hear it
            link.send(Refusal(message=_sayable(reason)), time.monotonic())
        _log.warning("link_refused", peer=link.peer, phase=link.phase.name.lower(), reason=reason)
        self._remove(link)

    def _lose(self, link: Link, reason: str) -> None:
        _log.info("link_lost", peer=link.peer, phase=link.phase.name.lower(), reason=reason)
        self._remove(link)

    def _remove(self, link: Link) -> None:
        self._selector.unregister(link.sock)
        del self._links[link]
        link.close()
        self._drivers.forget(link)


def _sayable(reason: str) -> str:
    """A reason that always fits into a ``Refusal``, even one that quotes the peer or an exception."""
    return reason[:_MAX_REASON_CHARACTERS].encode(errors="backslashreplace").decode()
