"""The output of one sequence, on its way from whoever delivers it (``gateway.streams``) to its one reader.

A reader that lags gets fewer and longer items, and one that lags too far behind is cut. While it waits and has nothing
unread, tokens go past its task by the short cut (``gateway.short_cut``); else they would overtake what it has not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace

from admission.queue import Entry
from gateway.clock import Clock
from gateway.dispatch import Place, TokenLogprob, Tokens
from gateway.forecast import Outlook, WaitForecast
from gateway.scores import num_values, since, token_logprobs
from workers.wire import Delivery, PromptNews, Scores


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamBounds:
    """How far a reader may fall behind its tokens.

    ``unread_tokens`` may wait for it; with so many waiting, it has ``slow_us`` to read some before it is cut. With
    ``most_unread_tokens`` waiting it is cut at once. A token takes 8 bytes here (its integer is mostly shared). Each
    log-probability counts as one more token there; it takes some 70 bytes.
    """

    unread_tokens: int = 2048
    slow_us: int = 30_000_000
    most_unread_tokens: int = 65_536


class Stream:
    """The output of one sequence, read by one consumer. Implements ``gateway.dispatch.TokenStream``.

    ``entry`` is what was offered of it last, at ``offered_us``; deliveries count by its id.
    """

    def __init__(
        self,
        entry: Entry,
        *,
        model: str,
        clock: Clock,
        on_complete: Callable[[Stream], None],
        on_cancel: Callable[[Stream], None],
        on_lost: Callable[[Stream], None],
    ) -> None:
        self.entry = entry
        self.model = model
        self.offered_us = clock()
        self._clock = clock
        self.is_placed = False  # whether the store has answered the offer of ``entry``
        self.driver_id: str | None = None
        self.output: list[int] = []  # every token so far: another driver may have to go on from them
        self.cached_tokens = 0
        self.num_moves = 0
        self.cancel_reason: str | None = None
        self.forecast: WaitForecast | None = None  # set when it waits and a prediction was made
        self.outlook: Outlook | None = None  # set when it waits
        self._on_complete = on_complete
        self._on_cancel = on_cancel
        self._on_lost = on_lost
        self._prompt_scores: list[Scores] = []
        self._scored_tokens = 1  # of the prompt: its first one has no log-probability
        self._unread: list[int] = []
        self._unread_scores: list[Scores] = []
        self._unread_values = 0
        self._unread_since_us: int | None = None
        self._end: Tokens | None = None
        self._exhausted = False
        self._stirred = asyncio.Event()
        self._is_awaited = False  # the reader has everything, and waits for more
        self._take_at_once: Callable[[Sequence[int]], bool] | None = None

    @property
    def sequence_id(self) -> str:
        return self.entry.entry_id

    @property
    def next_position(self) -> int:
        return len(self.output)

    @property
    def place(self) -> Place | None:
        if self.outlook is None or self.driver_id is not None:
            return None
        return self.outlook.place(self.offered_us, self._clock())

    @property
    def prompt_logprobs(self) -> tuple[TokenLogprob, ...]:
        return token_logprobs(self._prompt_scores)

    @property
    def is_open(self) -> bool:
        return self._end is None and self.cancel_reason is None

    def __aiter__(self) -> AsyncIterator[Tokens]:
        return self

    async def __anext__(self) -> Tokens:
        """All tokens that have come, at once: a reader that lags gets fewer and longer items."""
        while not self._exhausted and self.cancel_reason is None:
            if self._unread or self._end is not None:
                return self._take()
            self._stirred.clear()
            self._is_awaited = True
            try:
                await self._stirred.wait()
            finally:
                self._is_awaited = False
        raise StopAsyncIteration

    def shorten(self, take: Callable[[Sequence[int]], bool]) -> None:
        self._take_at_once = take

    def complete(self) -> None:
        """What has come is the whole answer. After the end it means nothing."""
        if self.is_open:
            self._on_complete(self)
            self.cancel("the answer is complete")

    def cancel(self, reason: str) -> None:
        """Nobody wants the rest. After the end, and the second time, it means nothing."""
        if self.is_open:
            self.cancel_reason = reason
            self._stir()
            self._on_cancel(self)

    def pass_at_once(self, driver_id: str, delivery: Delivery) -> bool:
        """Whether it was nothing but the next tokens, and the waiting reader has taken them by the short cut."""
        if not self._is_awaited or self._take_at_once is None or self.driver_id != driver_id:
            return False
        if delivery.position != len(self.output) or not delivery.is_tokens_alone:
            return False
        if not self._take_at_once(delivery.token_ids):
            return False
        self.output += delivery.token_ids
        return True

    def put(self, token_ids: Sequence[int], now_us: int, scores: Scores | None = None) -> None:
        """The next tokens, with their log-probabilities where they are asked for."""
        if not self._unread:
            self._unread_since_us = now_us
        self._unread.extend(token_ids)
        if scores is not None:
            self._unread_scores.append(scores)
            self._unread_values += num_values(scores)
        self.output.extend(token_ids)
        self._stir()

    def learn(self, news: PromptNews) -> bool:
        """Take what is told of the prompt, as far as it is the next; the result says whether any of it was.

        It counts only before the first token: afterwards it comes again, from whoever carries the sequence on.
        """
        if self.output:
            return False
        self.cached_tokens = self.cached_tokens or news.cached_tokens
        known = self._scored_tokens - news.start
        if news.scores is None or not 0 <= known < len(news.scores.own):
            return False
        self._prompt_scores.append(since(news.scores, known))
        self._scored_tokens = news.start + len(news.scores.own)
        return True

    def end(self, end: Tokens) -> None:
        """The driver says that nothing comes after this. ``end`` carries no tokens."""
        if self.is_open:
            self._end = end
            self._stir()

    def cut(self, end: Tokens) -> None:
        """End it from here, although its sequence may still wait or run somewhere."""
        if self.is_open:
            self.end(end)
            self._on_cancel(self)

    def lose(self) -> None:
        """What ran it is gone."""
        if self.is_open:
            self._on_lost(self)

    def lags_beyond(self, bounds: StreamBounds, now_us: int) -> bool:
        """Whether the reader has fallen too far behind for too long."""
        unread = len(self._unread)
        if unread + self._unread_values >= bounds.most_unread_tokens:
            return True
        if unread < bounds.unread_tokens or self._unread_since_us is None:
            return False
        return now_us - self._unread_since_us >= bounds.slow_us

    def _stir(self) -> None:
        """Wake the reader. From now on tokens queue behind what it wakes for."""
        self._is_awaited = False
        self._stirred.set()

    def _take(self) -> Tokens:
        token_ids, logprobs = tuple(self._unread), token_logprobs(self._unread_scores)
        self._unread.clear()
        self._unread_scores.clear()
        self._unread_values = 0
        end = self._end
        if end is None:
            return Tokens(token_ids=token_ids, logprobs=logprobs)
        self._exhausted = True
        return replace(end, token_ids=token_ids, logprobs=logprobs)
