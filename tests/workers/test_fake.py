"""The scripted worker keeps the executor's contract, and says, delays and breaks what its script tells it to."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.workers.executor_contract import NOTHING, ExecutorContract
from tests.workers.planner import Planner, Request, generate
from workers import fake_tokenizer
from workers.executor import Executor
from workers.fake import FakeExecutor, Host, ScriptedFailure
from workers.fake_script import FakeScript, ScriptError, read_script
from workers.fake_tokenizer import IM_END, IM_START, built_in_files
from workers.wire import Sampling

TOKENIZER = fake_tokenizer.load(built_in_files())


def fake(**script: Any) -> FakeExecutor:
    return FakeExecutor(
        read_script(json.dumps({"slots": 4, "blocks": 32, "host_blocks": 4, "context_length": 256, **script}))
    )


def ids(text: str) -> tuple[int, ...]:
    return tuple(TOKENIZER.encode(text).ids)


def answer(executor: Executor, prompt: str, *, max_tokens: int = 40, sampling: Sampling | None = None) -> list[int]:
    request = Request(prompt=ids(prompt), max_tokens=max_tokens, sampling=sampling or Sampling())
    return generate(executor, request)[0]


class TestFakeExecutor(ExecutorContract):
    @pytest.fixture(params=["words", "echo", "text"])
    def executor(self, request: pytest.FixtureRequest) -> Executor:
        outputs = {"text": {"kind": "text", "text": "The gate opens.", "then": "repeat"}}
        return fake(output=outputs.get(request.param, {"kind": request.param}))


# --- what is said -----------------------------------------------------------------------------------------------------


def test_echo_repeats_the_prompt_without_special_tokens() -> None:
    """A client sees what it sent, and position alone tells what must come after a move."""
    said = answer(fake(output={"kind": "echo"}), f"{IM_START}abc{IM_END}", max_tokens=7)
    assert TOKENIZER.decode(said) == "abcabca"


def test_a_context_that_the_pool_cannot_hold_is_lowered_to_what_it_can() -> None:
    """As the engine does: a longer request would be accepted and wait for ever."""
    assert fake(blocks=9, block_size=16, context_length=2048).card.context_length == 9 * 16


def test_a_text_ends_with_an_eos() -> None:
    """Like a model that has said what it had to say."""
    said = answer(fake(output={"kind": "text", "text": "Yes."}), "?")
    assert said == [*ids("Yes."), TOKENIZER.token_to_id(IM_END)]


def test_a_text_is_repeated_when_eos_is_ignored() -> None:
    """``ignore_eos`` runs on to ``max_tokens``."""
    said = answer(fake(output={"kind": "text", "text": "ab"}), "?", max_tokens=5, sampling=Sampling(ignore_eos=True))
    assert TOKENIZER.decode(said) == "ababa"


def test_token_ids_come_out_as_they_are() -> None:
    """Half a character, for one, as only a real model would give it."""
    assert answer(fake(output={"kind": "token_ids", "token_ids": [200, 201]}), "?") == [200, 201, 2]


def test_words_depend_on_prompt_seed_and_choice() -> None:
    """Equal requests get equal answers, others other ones."""
    executor = fake()
    samplings = [Sampling(seed=1), Sampling(seed=1), Sampling(seed=2), Sampling(seed=1, choice=1)]
    first, again, other_seed, other_choice = (answer(executor, "Hi", sampling=sampling) for sampling in samplings)
    assert first == again
    assert len({tuple(said) for said in (first, other_seed, other_choice, answer(executor, "Ho"))}) == 4


def test_words_end_where_the_script_says() -> None:
    """``end_after`` counts tokens."""
    said = answer(fake(output={"kind": "words", "end_after": 4}), "?")
    assert len(said) == 5
    assert said[-1] == 2


def test_the_first_rule_that_matches_the_prompt_counts() -> None:
    """One worker plays several parts, by what it is asked."""
    executor = fake(
        output={"kind": "text", "text": "else"},
        rules=[
            {"contains": "one", "output": {"kind": "text", "text": "first"}},
            {"contains": "on", "output": {"kind": "text", "text": "second"}},
        ],
    )
    said = [TOKENIZER.decode(answer(executor, prompt)) for prompt in ("one", "on", "off")]
    assert said == ["first", "second", "else"]


def test_a_scripted_failure_hits_its_sequence_alone() -> None:
    """A request that breaks in the worker must not break its neighbours."""
    executor = fake(rules=[{"contains": "bad", "output": {"kind": "text", "text": "a", "then": "fail"}}])
    planner = Planner(executor)
    planner.iterate(starts=[Request(prompt=ids("bad")), Request(prompt=ids("good"))])
    report = planner.iterate()
    assert report.finished == ((0, "failed"),)
    assert [slot for slot, _ in report.tokens] == [1]


# --- delays and faults ------------------------------------------------------------------------------------------------


class RecordingHost:
    """Remembers what would have happened to the process."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self.killed: list[int] = []

    def host(self) -> Host:
        return Host(sleep=self.slept.append, kill=self.killed.append)


def test_an_iteration_takes_the_time_of_its_work() -> None:
    """Tests of fairness and of budgets need costs that are known."""
    recording = RecordingHost()
    delays = {"base_us": 1000, "prefill_token_us": 10, "decode_sequence_us": 100}
    executor = FakeExecutor(FakeScript.model_validate({"delays": delays}), recording.host())
    planner = Planner(executor)
    planner.iterate(starts=[Request(prompt=ids("abcde"))])
    planner.iterate(starts=[Request(prompt=ids("xyz"))])
    planner.iterate(frees=planner.running())
    assert recording.slept == pytest.approx([0.00105, 0.00113])


@pytest.mark.parametrize(("kind", "number"), [("crash", signal.SIGKILL), ("freeze", signal.SIGSTOP)])
def test_a_process_fault_comes_at_its_iteration(kind: str, number: int) -> None:
    """Not one iteration earlier: what came before counts as delivered."""
    recording = RecordingHost()
    script = FakeScript.model_validate({"faults": [{"kind": kind, "at": 2}]})
    executor = FakeExecutor(script, recording.host())
    executor.execute(NOTHING)
    assert recording.killed == []
    executor.execute(NOTHING)
    assert recording.killed == [number]


def test_a_hang_takes_its_seconds() -> None:
    """Found by lack of progress, not by a closed connection."""
    recording = RecordingHost()
    executor = FakeExecutor(FakeScript.model_validate({"faults": [{"kind": "hang", "at": 1, "seconds": 5.0}]}),
                            recording.host())  # fmt: skip
    executor.execute(NOTHING)
    assert recording.slept == [5.0]


def test_an_exception_comes_out_of_execute() -> None:
    """The server's part is then to say so loudly."""
    executor = fake(faults=[{"kind": "raise", "at": 1}])
    with pytest.raises(ScriptedFailure):
        executor.execute(NOTHING)


def test_a_false_count_of_live_blocks_is_told_once() -> None:
    """The scheduler has to notice."""
    executor = fake(faults=[{"kind": "wrong_live_blocks", "at": 1}])
    assert [executor.execute(NOTHING).live_blocks for _ in range(2)] == [1, 0]


# --- scripts and tokenizers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ('{"speed": 1}', "speed: Extra inputs are not permitted"),
        ('{"slots": "4"}', "slots: Input should be a valid integer"),
        ('{"output": {"kind": "song"}}', "output: "),
        ('{"faults": [{"kind": "crash"}]}', r"faults\.0\.crash\.at: Field required"),
        ("{", "Invalid JSON"),
        ("/no/such/script.json", "cannot read the script"),
    ],
)
def test_a_script_that_cannot_be_played_is_refused_with_a_sentence(source: str, sentence: str) -> None:
    """A misspelt fault would be a test that tests nothing."""
    with pytest.raises(ScriptError, match=sentence):
        read_script(source)


def test_a_script_is_read_from_a_file(tmp_path: Path) -> None:
    """Long ones do not fit a command line."""
    path = tmp_path / "script.json"
    path.write_text('{"model": "actor"}')
    assert read_script(str(path)).model == "actor"


def test_the_documented_example_can_be_played() -> None:
    """Documentation that is refused helps nobody."""
    page = (Path(__file__).parents[2] / "docs" / "fake-worker.md").read_text()
    example = page.split("```json\n")[1].split("```")[0]
    assert len(read_script(example).rules) == 2


def test_a_tokenizer_of_a_folder_is_announced_whole(tmp_path: Path) -> None:
    """A script may play with a real model's tokenizer."""
    for name, content in built_in_files().files:
        (tmp_path / name).write_bytes(content)
    executor = fake(tokenizer=str(tmp_path))
    assert executor.tokenizer_files() == built_in_files()
    assert executor.card.eos_ids == (2,)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    """At the start, with a sentence."""
    with pytest.raises(ScriptError, match=r"has no tokenizer\.json"):
        fake(tokenizer=str(tmp_path))


@pytest.mark.parametrize("text", ["", "the water gate", "é 😀 \n\t", "ABC the  gates", "\0\x7f"])
def test_the_built_in_tokenizer_gives_every_text_back(text: str) -> None:
    """Bytes have tokens, so nothing is unknown."""
    assert TOKENIZER.decode(list(ids(text)), skip_special_tokens=False) == text


def test_the_built_in_ids_are_fixed() -> None:
    """Tests name them."""
    assert ids(f"<|endoftext|>{IM_START}{IM_END}") == (0, 1, 2)
    assert len(ids(" water gate")) == 2
