"""What eight bits cost: the perplexity of a text under the engine in float32, bfloat16 and with `--quantize int8`.

The text is this project's own documentation, in windows of 512 tokens, each scored by the worker's own
log-probabilities of prompts. Run: ``python -m tests.bench.perplexity``. Prints, asserts nothing.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from pathlib import Path

from tokenizers import Tokenizer

from tests.workers.engine_support import NOTHING, Options
from workers.engine import Engine
from workers.engine_settings import DEFAULT_MODEL
from workers.loading import load_engine
from workers.weights import default_cache, find_model
from workers.wire import NewSequence, PrefillSpan, Sampling

WINDOW = 512
DOCS = Path(__file__).parents[2] / "docs"
CASES = {"float32": ("float32", None), "bfloat16": ("bfloat16", None), "int8": ("auto", "int8")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--windows", type=int, default=24)
    options = parser.parse_args()
    folder = find_model(options.model, default_cache(), print).path
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    text = "\n\n".join(path.read_text() for path in sorted(DOCS.glob("*.md")))
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    windows = [tuple(ids[at : at + WINDOW]) for at in range(0, len(ids) - WINDOW, WINDOW)][: options.windows]
    for name, (dtype, quantize) in CASES.items():
        settings = Options(
            model=str(folder), dtype=dtype, quantize=quantize, block_size=16, max_slots=1, max_model_len=WINDOW + 16
        )
        engine = load_engine(settings, lambda _: None)
        losses = [-own for window in windows for own in scores(engine, window)]
        print(f"{name:>10}: perplexity {math.exp(sum(losses) / len(losses)):.3f} over {len(losses)} tokens", flush=True)


def scores(engine: Engine, window: tuple[int, ...]) -> list[float]:
    """The log-probability of each token but the first."""
    start = NewSequence(
        slot=0,
        sequence_id="text",
        tokens=window,
        emitted=0,
        computed=0,
        max_tokens=1,
        sampling=Sampling(temperature=0.0, prompt_logprobs=0),
        blocks=tuple(range(-(-(WINDOW + 1) // engine.block_size))),
    )
    spans = (PrefillSpan(slot=0, start=0, length=len(window), emits=True),)
    report = engine.execute(replace(NOTHING, starts=(start,), prefill=spans))
    engine.reset()
    return [own for part in report.logprobs for own in part.own if part.start <= len(window) - 1]


if __name__ == "__main__":
    main()
