"""What a connection may say to a worker, and who drives it. No I/O beyond the links' own.

A connection goes through the phases of ``link.py``; a table says which message means what in which phase, and any other
message ends that connection, and no other.

There is one driver at a time. Others may connect, prove themselves and ask, but a ``Welcome`` makes its sender the
driver only with an epoch above every one seen (or equal to the last, when no driver is connected: the same driver is
back). So a gateway that lost its lease without noticing can do no harm, and one that hangs can be replaced.

An iteration that hangs outlives its driver, who gives the worker up. Until it ends, the worker introduces itself to
nobody: a new driver would claim sequences, wait for them in vain, and each of them would have moved for nothing.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import structlog

from workers.link import Link, Phase
from workers.mail import Assigned, DriverLost, Mail
from workers.wire import (
    WIRE_VERSION,
    Auth,
    Hello,
    Message,
    PlanMessage,
    TokenizerFiles,
    TokenizerRequest,
    Welcome,
    auth_digest,
    encode,
)

MAX_IN_FLIGHT = 8
"""Most plans that a driver may have on the worker; two hide its own time already."""

_log = structlog.get_logger(__name__)


class Refused(Exception):
    """The link has to end; the text tells its peer why."""


class Drivers:
    """Answers the messages of all links; the driver's plans go to ``mail``.

    ``introduce`` gives the ``Hello`` for the last epoch seen; ``dismiss`` has to cut a driver that is replaced.
    """

    def __init__(
        self,
        *,
        mail: SimpleQueue[Mail],
        secret: bytes,
        introduce: Callable[[int], Hello],
        tokenizer: TokenizerFiles,
        dismiss: Callable[[Link, str], None],
    ) -> None:
        self._mail = mail
        self._secret = secret
        self._introduce = introduce
        self._tokenizer_digest = tokenizer.digest
        self._tokenizer_frame = encode(tokenizer)
        self._dismiss = dismiss
        self._driver: Link | None = None
        self._loss: DriverLost | None = None  # the last one: the engine takes them in order
        self._held: list[Link] = []
        self._last_epoch = 0
        self._handlers: dict[tuple[Phase, type[Message]], Callable[[Link, Any, float], None]] = {
            (Phase.PROVING, Auth): self._prove,
            (Phase.ASKING, Welcome): self._welcome,
            (Phase.ASKING, TokenizerRequest): self._send_tokenizer,
            (Phase.DRIVING, TokenizerRequest): self._send_tokenizer,
            (Phase.DRIVING, PlanMessage): self._take_plan,
        }

    def handle(self, link: Link, message: Message, now: float) -> None:
        """Do what ``message`` asks. Raises ``Refused``, and ``LinkLost`` when the answer cannot be sent."""
        handler = self._handlers.get((link.phase, type(message)))
        if handler is None:
            raise Refused(f"{type(message).__name__} is not expected while {link.phase.name.lower()}")
        handler(link, message, now)

    def forget(self, link: Link) -> None:
        """The link was cut; if it was the driver's, its sequences go too."""
        if link in self._held:
            self._held.remove(link)
        if link is self._driver:
            self._driver = None
            self._loss = DriverLost(link=link)
            self._mail.put(self._loss)

    def take_held(self) -> list[Link]:
        """Those who were to wait for their ``Hello``, once the engine has let go of the former driver."""
        if not self._engine_is_free:
            return []
        held, self._held = self._held, []
        return held

    def introduce(self, link: Link, now: float) -> None:
        """Say hello, now or when the engine is free. Raises ``LinkLost``."""
        if self._engine_is_free:
            link.send(self._introduce(self._last_epoch), now)
        else:
            self._held.append(link)

    @property
    def _engine_is_free(self) -> bool:
        return self._loss is None or self._loss.settled.is_set()

    def _prove(self, link: Link, auth: Auth, now: float) -> None:
        if auth.version != WIRE_VERSION:
            raise Refused(f"wire version {auth.version} is not {WIRE_VERSION}")
        if not hmac.compare_digest(auth.digest, auth_digest(self._secret, link.nonce)):
            raise Refused("wrong secret")
        link.begin_asking(auth.peer, now)
        self.introduce(link, now)

    def _welcome(self, link: Link, welcome: Welcome, _now: float) -> None:
        if not 1 <= welcome.max_in_flight <= MAX_IN_FLIGHT:
            raise Refused(f"{welcome.max_in_flight} plans in flight are not 1 to {MAX_IN_FLIGHT}")
        if welcome.epoch < self._last_epoch:
            raise Refused(f"epoch {welcome.epoch} is over, the last is {self._last_epoch}")
        if self._driver is not None and welcome.epoch == self._last_epoch:
            raise Refused(f"epoch {welcome.epoch} is that of {self._driver.peer}, which is connected")
        if self._driver is not None:
            self._dismiss(self._driver, f"{link.peer} took over with epoch {welcome.epoch}")
        self._driver = link
        self._last_epoch = welcome.epoch
        link.begin_driving(epoch=welcome.epoch, max_in_flight=welcome.max_in_flight)
        _log.info("driver_connected", peer=link.peer, epoch=welcome.epoch)

    def _send_tokenizer(self, link: Link, request: TokenizerRequest, now: float) -> None:
        if request.digest != self._tokenizer_digest:
            raise Refused(f"the tokenizer here is not {request.digest!r}")
        link.send_frame(self._tokenizer_frame, now)

    def _take_plan(self, link: Link, plan: PlanMessage, _now: float) -> None:
        if plan.epoch != link.epoch:
            raise Refused(f"plan {plan.step} has epoch {plan.epoch}, its driver {link.epoch}")
        if link.in_flight >= link.max_in_flight:
            raise Refused(f"plan {plan.step} is one more in flight than the {link.max_in_flight} agreed")
        link.in_flight += 1
        self._mail.put(Assigned(link=link, plan=plan))
