"""The short cut of a token: from the delivery that brings it to the answer, within one call.

Most tokens of most answers are alike: one more piece of text, for a client that keeps up. To wake the answer's task for
each of them, and to hand it an item, costs more than to write it. So a stream offers plain tokens here first, in the
driver's own turn, while the task sleeps. Whatever is not alike (the first token, which brings the headers, the end, an
error, a client that falls behind, stop strings, log-probabilities) is left to the task, which finds everything as if it
had done the rest itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.chunks import ChunkWriter
from gateway.record import RequestRecord
from gateway.reply import Choice
from gateway.sse import SseResponse


class ShortCut:
    """Takes the tokens of ``choice`` at once, or not at all.

    ``may_show`` says whether their text can be shown now, ``show`` shows it; neither waits.
    """

    def __init__(
        self, choice: Choice, record: RequestRecord, *, may_show: Callable[[], bool], show: Callable[[str], None]
    ) -> None:
        self._choice = choice
        self._output = choice.output
        self._record = record
        self._may_show = may_show
        self._show = show

    def take(self, token_ids: Sequence[int]) -> bool:
        """Show them, unless this is for the task to do. A fault in one answer is not the driver's: it ends here."""
        if not (self._choice.has_begun and self._may_show()):
            return False
        try:
            self._record.tokens_arrived()
            self._record.completion_tokens += len(token_ids)
            text = self._output.take_tokens(token_ids)
            if text:
                self._show(text)
        except Exception as error:  # noqa: BLE001 (as above: the task is woken, and finds a stream without an end)
            self._record.failed(error)
            self._choice.stream.cancel("its text could not be shown")
        return True


def stream_at_once(choice: Choice, record: RequestRecord, writer: ChunkWriter, sse: SseResponse) -> None:
    """Let tokens of the only choice of a streamed answer go straight to its client, if they can."""
    if choice.output.is_plain:
        cut = ShortCut(
            choice,
            record,
            may_show=sse.keeps_up,
            show=lambda text: sse.write_at_once(writer.text(text)),
        )
        choice.stream.shorten(cut.take)


def collect_at_once(choice: Choice, record: RequestRecord, texts: list[str]) -> None:
    """Let tokens of a choice of a whole answer go straight to its ``texts``, if they can."""
    if choice.output.is_plain:
        cut = ShortCut(choice, record, may_show=lambda: True, show=texts.append)
        choice.stream.shorten(cut.take)
