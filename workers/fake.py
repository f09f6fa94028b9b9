"""A worker without torch: it says what its script says, takes as long as it says, and fails when it says.

It stands behind the same wire and passes the same contract suite as the engine, and checks plans as strictly
(``slots.py``). What it says next is a function of the script, the prompt, the sampling and the output position alone,
so a sequence that moved here with its tokens so far goes on exactly where it was.
"""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workers import fake_tokenizer
from workers.fake_script import (
    Crash,
    Echo,
    FakeScript,
    Fault,
    Freeze,
    Hang,
    Output,
    Raise,
    ScriptError,
    Text,
    TokenIds,
    Words,
    WrongLiveBlocks,
)
from workers.slots import SlotState, SlotTable, Work
from workers.wire import Logprobs, ModelCard, PlanMessage, ReportMessage, TokenizerFiles

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class ScriptedFailure(Exception):
    """The exception that a script asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What faults and delays do to the process; tests put harmless ones here."""

    sleep: Callable[[float], None] = time.sleep
    kill: Callable[[int], None] = lambda number: os.kill(os.getpid(), number)


def logprob_of(token: int) -> float:
    """What this worker gives as the log-probability of a token: by it one can tell of which it is."""
    return -(1 + token % 1024) / 1024


class FakeExecutor:
    """An ``Executor`` that plays a script. Raises ``ScriptError`` when the script's tokenizer cannot be used."""

    def __init__(self, script: FakeScript, host: Host | None = None) -> None:
        self._script = script
        self._host = Host() if host is None else host
        self._files = _tokenizer_files(script)
        tokenizer = fake_tokenizer.load(self._files)
        self.max_slots = script.slots
        self.kv_blocks = script.blocks
        self.block_size = script.block_size
        self.host_blocks = script.host_blocks
        context_length = min(script.context_length, script.blocks * script.block_size)
        self.card = ModelCard(
            name=script.model,
            context_length=context_length,
            vocab_size=tokenizer.get_vocab_size(),
            eos_ids=fake_tokenizer.eos_ids(self._files, tokenizer),
            tokenizer_digest=self._files.digest,
            dtype="none",
            device="none",
        )
        self._speaker = _Speaker(script, tokenizer, self.card.eos_ids)
        self._table = SlotTable(
            max_slots=script.slots,
            kv_blocks=script.blocks,
            block_size=script.block_size,
            context_length=context_length,
            eos_ids=self.card.eos_ids,
            host_blocks=script.host_blocks,
        )
        self._replies: dict[int, _Reply] = {}
        self._iteration = 0

    def tokenizer_files(self) -> TokenizerFiles:
        return self._files

    def reset(self) -> None:
        self._table.reset()
        self._replies.clear()

    def execute(self, plan: PlanMessage) -> ReportMessage:
        self._iteration += 1
        faults = [fault for fault in self._script.faults if fault.at == self._iteration]
        for fault in faults:
            self._suffer(fault)
        work = self._table.apply(plan)
        self._table.take_moves()  # there is no memory to move
        self._take_time(work)
        tokens: list[tuple[int, int]] = []
        finished: list[tuple[int, str]] = []
        logprobs: list[Logprobs] = []
        for item in work:
            logprobs += self._prompt_logprobs(item)
            if item.emits:
                self._emit(item.state, tokens, finished, logprobs)
        return ReportMessage(
            step=plan.step,
            epoch=plan.epoch,
            tokens=tuple(tokens),
            finished=tuple(finished),
            live_blocks=self._table.live_blocks + sum(isinstance(fault, WrongLiveBlocks) for fault in faults),
            busy_us=0,
            idle_us=0,
            logprobs=tuple(logprobs),
            host_blocks=self._table.host_blocks,
        )

    def _prompt_logprobs(self, work: Work) -> list[Logprobs]:
        state, width = work.state, work.state.sampling.prompt_logprobs
        followers = state.prompt[work.start + 1 : work.start + work.length + 1]
        if width is None or state.emitted > 0 or not followers:
            return []
        return [self._logprobs(state, work.start + 1, followers, width)]

    def _logprobs(self, state: SlotState, start: int, tokens: Sequence[int], width: int) -> Logprobs:
        """Each token is the likeliest itself; the ids after it follow, each less likely than the one before."""
        offsets = range(min(width, self.card.vocab_size))
        return Logprobs(
            slot=state.slot,
            start=start,
            own=tuple([logprob_of(token) for token in tokens]),
            top_ids=tuple((token + offset) % self.card.vocab_size for token in tokens for offset in offsets),
            top=tuple(logprob_of(token) - offset for token in tokens for offset in offsets),
        )

    def _emit(
        self,
        state: SlotState,
        tokens: list[tuple[int, int]],
        finished: list[tuple[int, str]],
        logprobs: list[Logprobs],
    ) -> None:
        token = self._reply(state).token_at(state.emitted)
        if token is not None:
            tokens.append((state.slot, token))
            if state.sampling.top_logprobs is not None:
                logprobs.append(self._logprobs(state, len(state.tokens), (token,), state.sampling.top_logprobs))
        reason = self._table.fail(state) if token is None else self._table.emit(state, token)
        if reason is not None:
            finished.append((state.slot, reason))

    def _reply(self, state: SlotState) -> _Reply:
        """The reply to this slot's sequence, made at its first emission (a slot's next sequence gets its own)."""
        reply = self._replies.get(state.slot)
        if reply is None or reply.state is not state:
            reply = self._replies[state.slot] = self._speaker.reply_to(state)
        return reply

    def _take_time(self, work: Sequence[Work]) -> None:
        if not work:
            return
        delays = self._script.delays
        prefilled = sum(item.length for item in work if item.start < item.state.prompt_length)
        decoded = sum(item.start >= item.state.prompt_length for item in work)
        total_us = delays.base_us + delays.prefill_token_us * prefilled + delays.decode_sequence_us * decoded
        if total_us > 0:
            self._host.sleep(total_us / 1e6)

    def _suffer(self, fault: Fault) -> None:
        match fault:
            case Crash():
                self._host.kill(signal.SIGKILL)
            case Freeze():
                self._host.kill(signal.SIGSTOP)
            case Hang():
                self._host.sleep(fault.seconds)
            case Raise():
                raise ScriptedFailure(f"the script asks for a failure in iteration {fault.at}")
            case WrongLiveBlocks():
                pass  # told in the report


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reply:
    """All that will be said to one sequence. ``end`` is the position of what closes it (None: it never closes)."""

    state: SlotState
    token_of: Callable[[int], int]
    end: int | None
    eos: int | None

    def token_at(self, position: int) -> int | None:
        """The token of an output position; None: the sequence fails here. What may not stop yet goes on past a stop."""
        if self.end is None or position < self.end:
            return self.token_of(position)
        sampling = self.state.sampling
        if self.eos is not None and (sampling.ignore_eos or position < sampling.min_tokens):
            return self.token_of(position)
        return self.eos


class _Speaker:
    """Chooses what to say to a prompt."""

    def __init__(self, script: FakeScript, tokenizer: Tokenizer, eos_ids: tuple[int, ...]) -> None:
        self._script = script
        self._tokenizer = tokenizer
        self._eos = eos_ids[0] if eos_ids else None
        self._special = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
        self._words = [tuple(self._ids(f" {word}")) for word in fake_tokenizer.WORDS]

    def reply_to(self, state: SlotState) -> _Reply:
        output = self._choose(state.prompt)
        end: int | None
        match output:
            case Text() | TokenIds():
                ids = self._ids(output.text) if isinstance(output, Text) else list(output.token_ids)
                token_of, end = _cyclic(ids), None if output.then == "repeat" else len(ids)
            case Echo():
                spoken = [token for token in state.prompt if token not in self._special]
                token_of, end = _cyclic(spoken or self._ids(" ")), output.end_after
            case Words():
                token_of, end = _WordStream(self._words, _seed_of(state)).token_at, output.end_after
        eos = None if output.then == "fail" else self._eos
        return _Reply(state=state, token_of=token_of, end=end, eos=eos)

    def _choose(self, prompt: list[int]) -> Output:
        if not self._script.rules:
            return self._script.output
        text = self._tokenizer.decode(prompt, skip_special_tokens=False)
        return next((rule.output for rule in self._script.rules if rule.contains in text), self._script.output)

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)


class _WordStream:
    """Words drawn by (seed, word number), as one endless run of tokens."""

    def __init__(self, words: Sequence[tuple[int, ...]], seed: bytes) -> None:
        self._words = words
        self._seed = seed
        self._tokens: list[int] = []
        self._drawn = 0

    def token_at(self, position: int) -> int:
        while len(self._tokens) <= position:
            drawn = hashlib.blake2b(self._drawn.to_bytes(8, "little"), key=self._seed, digest_size=8).digest()
            self._tokens += self._words[int.from_bytes(drawn, "little") % len(self._words)]
            self._drawn += 1
        return self._tokens[position]


def _cyclic(ids: Sequence[int]) -> Callable[[int], int]:
    return lambda position: ids[position % len(ids)]


def _seed_of(state: SlotState) -> bytes:
    told = (tuple(state.prompt), state.sampling.seed, state.sampling.choice)
    return hashlib.blake2b(repr(told).encode(), digest_size=32).digest()


def _tokenizer_files(script: FakeScript) -> TokenizerFiles:
    if script.tokenizer is None:
        return fake_tokenizer.built_in_files()
    try:
        return fake_tokenizer.files_in(script.tokenizer)
    except OSError as error:
        raise ScriptError(f"the tokenizer of the fake worker cannot be read: {error}") from None
