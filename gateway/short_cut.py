"""The short cut of a token: from the delivery that brings it to the client's socket, within one call.

Most tokens of most answers are alike: one more piece of text for a client that keeps up. To wake the answer's task for
each of them, and to hand it an item, costs more than the write itself. So a stream offers plain tokens here first, in
the driver's own turn, while the task sleeps. Whatever is not alike (the first token, which brings the headers, the end,
an error, a client that falls behind, stop strings, log-probabilities, several choices) is left to the task, which finds
everything as if it had written the rest itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.chunks import ChunkWriter
from gateway.endpoint import Body
from gateway.reply import Choice, Reply
from gateway.sse import SseResponse


class ShortCut:
    """Writes tokens of the only choice of ``reply``, at once or not at all."""

    def __init__(self, reply: Reply[Body], choice: Choice, writer: ChunkWriter, sse: SseResponse) -> None:
        self._record = reply.record
        self._choice = choice
        self._output = choice.output
        self._writer = writer
        self._sse = sse

    def take(self, token_ids: Sequence[int]) -> bool:
        """Write them, unless this is for the task to do. A fault in one answer is not the driver's: it ends here."""
        if not (self._choice.has_begun and self._sse.keeps_up):
            return False
        record, output = self._record, self._output
        try:
            record.tokens_arrived()
            text = output.take_tokens(token_ids)
            record.completion_tokens = output.num_tokens
            if text:
                self._sse.write_at_once(self._writer.text(text))
        except Exception as error:  # noqa: BLE001 (as above: the task is woken, and finds a stream without an end)
            record.failed(error)
            self._choice.stream.cancel("its text could not be written")
        return True


def shorten(reply: Reply[Body], writers: Sequence[ChunkWriter], sse: SseResponse) -> None:
    """Let the tokens of ``reply`` take the short cut, if it is an answer whose tokens can."""
    if len(reply.choices) == 1 and reply.choices[0].output.is_plain:
        (choice,), (writer,) = reply.choices, writers
        choice.stream.shorten(ShortCut(reply, choice, writer, sse).take)
