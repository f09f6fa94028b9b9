"""How much output this gateway expects of a request, by model and class: what it has seen of its kind.

Each gateway learns from its own requests. Models are those of workers and classes those of the configuration, so there
are few kinds; ``MOST_KINDS`` bounds them all the same, and beyond it ``max_tokens`` is what is expected.
"""

from __future__ import annotations

from admission.estimate import OutputEstimate

MOST_KINDS = 1024
"""Each holds some hundred numbers: 10 MB in all at most."""


class Estimates:
    """One ``OutputEstimate`` for each model and class that has given output."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str], OutputEstimate] = {}

    def note(self, model: str, class_name: str, output_tokens: int) -> None:
        """A request has got all the output that it was to get: it was not cancelled, cut or lost."""
        kind = (model, class_name)
        if kind not in self._kinds:
            if len(self._kinds) == MOST_KINDS:
                return
            self._kinds[kind] = OutputEstimate()
        self._kinds[kind].note(output_tokens)

    def expected(self, model: str, class_name: str, max_tokens: int) -> int:
        """Output tokens to expect; of a kind that has given none, as of one that has given too few to tell."""
        estimate = self._kinds.get((model, class_name)) or OutputEstimate()
        return estimate.expected(max_tokens)
