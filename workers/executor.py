"""What the server needs of a model: the edge between the wire and whatever computes tokens.

The engine (torch) and the scripted worker (no torch) both stand behind this Protocol and pass the same contract suite,
``tests/workers/executor_contract.py``.
"""

from __future__ import annotations

from typing import Protocol

from workers.wire import ModelCard, PlanMessage, ReportMessage, TokenizerFiles


class PlanError(Exception):
    """A plan that no correct driver sends: the text says what is wrong with it.

    The executor's state means nothing afterwards; the server refuses the driver and calls ``reset``.
    """


class Executor(Protocol):
    """Executes plans, one at a time, always from the same thread.

    ``max_slots`` sequences at once, in ``kv_blocks`` blocks of ``block_size`` tokens each, and ``host_blocks`` more for
    those that are swapped out.
    """

    @property
    def card(self) -> ModelCard: ...

    @property
    def max_slots(self) -> int: ...

    @property
    def kv_blocks(self) -> int: ...

    @property
    def block_size(self) -> int: ...

    @property
    def host_blocks(self) -> int: ...

    def tokenizer_files(self) -> TokenizerFiles:
        """The tokenizer that the card's digest names. Called once, before the first plan."""
        ...

    def execute(self, plan: PlanMessage) -> ReportMessage:
        """Run one iteration. ``busy_us`` and ``idle_us`` of the report are 0: the server measures them.

        Raises ``PlanError`` for a plan that breaks the rules; anything else that it raises is the executor's fault.
        A sequence that cannot go on fails alone (``finished`` with ``failed``), its neighbours unharmed.
        """
        ...

    def reset(self) -> None:
        """The driver is gone: forget every sequence and free every block."""
        ...
