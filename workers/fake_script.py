"""What a scripted worker is told to be and to say: a strictly validated document (``docs/fake-worker.md``).

``read_script`` takes what the flag ``--fake-worker`` takes: the word ``default``, inline JSON, or the path of a file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Count = Annotated[int, Field(ge=1)]
Microseconds = Annotated[int, Field(ge=0, le=60_000_000)]
Seconds = Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)]
Then = Literal["stop", "repeat", "fail"]


class ScriptError(Exception):
    """A script that cannot be played; the text is one sentence."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


# --- what is said -----------------------------------------------------------------------------------------------------


class Words(_Strict):
    """English words without end, a function of prompt, seed, choice and position alone."""

    kind: Literal["words"] = "words"
    end_after: Count | None = None
    then: Literal["stop", "fail"] = "stop"


class Echo(_Strict):
    """The prompt's own tokens (special ones left out), over and over: position tells what must come."""

    kind: Literal["echo"]
    end_after: Count | None = None
    then: Literal["stop", "fail"] = "stop"


class Text(_Strict):
    """A fixed text, then an eos token; or the text over and over; or a failure of this sequence."""

    kind: Literal["text"]
    text: Annotated[str, Field(min_length=1)]
    then: Then = "stop"


class TokenIds(_Strict):
    """Like ``Text``, token by token: eos ids and broken UTF-8 included."""

    kind: Literal["token_ids"]
    token_ids: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1, strict=False)]
    then: Then = "stop"


Output = Annotated[Words | Echo | Text | TokenIds, Field(discriminator="kind")]


class Rule(_Strict):
    """Prompts whose text contains ``contains`` get ``output``; the first rule that matches counts."""

    contains: Annotated[str, Field(min_length=1)]
    output: Output


# --- how long it takes ------------------------------------------------------------------------------------------------


class Delays(_Strict):
    """Time per iteration: ``base_us``, more for each token prefilled and each sequence decoded; ``load_s`` at start."""

    base_us: Microseconds = 0
    prefill_token_us: Microseconds = 0
    decode_sequence_us: Microseconds = 0
    load_s: Seconds = 0.0


# --- what goes wrong --------------------------------------------------------------------------------------------------


class Crash(_Strict):
    """The process is gone, as if killed, before it executes its ``at``-th iteration (counted over its life, from 1)."""

    kind: Literal["crash"]
    at: Count


class Freeze(_Strict):
    """The whole process stops (SIGSTOP): connections stay open, nothing is read or written."""

    kind: Literal["freeze"]
    at: Count


class Hang(_Strict):
    """One iteration takes ``seconds`` longer; the link goes on being served."""

    kind: Literal["hang"]
    at: Count
    seconds: Seconds


class Raise(_Strict):
    """The executor fails with an exception in its ``at``-th iteration."""

    kind: Literal["raise"]
    at: Count


class WrongLiveBlocks(_Strict):
    """The report of one iteration claims one live block too many."""

    kind: Literal["wrong_live_blocks"]
    at: Count


Fault = Annotated[Crash | Freeze | Hang | Raise | WrongLiveBlocks, Field(discriminator="kind")]


class FakeScript(_Strict):
    """The whole script. ``tokenizer`` is a folder with ``tokenizer.json``; without one it is the built-in one."""

    model: Annotated[str, Field(min_length=1)] = "fake"
    context_length: Count = 2048
    slots: Annotated[int, Field(ge=1, le=4096)] = 8
    blocks: Annotated[int, Field(ge=1, le=2**31)] = 1024
    block_size: Annotated[int, Field(ge=1, le=1024)] = 16
    host_blocks: Annotated[int, Field(ge=0, le=2**31)] = 0
    tokenizer: Annotated[Path | None, Field(strict=False)] = None
    output: Output = Words()
    rules: Annotated[tuple[Rule, ...], Field(strict=False)] = ()
    delays: Delays = Delays()
    faults: Annotated[tuple[Fault, ...], Field(strict=False)] = ()


def read_script(source: str) -> FakeScript:
    """The script that ``source`` names or holds. Raises ``ScriptError``."""
    if source == "default":
        return FakeScript()
    text = source if source.lstrip().startswith("{") else _read(Path(source))
    try:
        return FakeScript.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "it"
        raise ScriptError(f"the script of the fake worker is not valid: {place}: {first['msg']}") from None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ScriptError(f"cannot read the script of the fake worker: {error}") from None
