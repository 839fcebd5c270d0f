"""Where greedy text of Bireme and llama.cpp parts: ``make agree``.

Both get the same token ids (a chat prompt rendered once), one sequence at a time, and take the most likely token each
time. Where they part, the gap between the two tokens' logits is printed as Bireme and as llama.cpp see it: a gap near
zero is a tie that rounding decided, a large one would be a fault.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..backends.options import BackendOptions
from ..backends.select import load_backend, usable_cores
from ..core.config import EngineConfig
from ..core.engine import Engine
from ..core.request import Request, SamplingParams, TokenLogprob
from ..models.checkpoint import open_checkpoint
from ..models.hub import resolve
from ..models.template import ChatTemplate
from ..models.tokenizer import Tokenizer
from .llama_c import LlamaModel
from .machine import describe, line

QUESTIONS = (
    "What is the capital of France?",
    "Explain in two sentences why the sky is blue.",
    "Write a haiku about the sea.",
    "List three uses of a paper clip.",
    "Translate 'good morning' into Spanish.",
    "What is 17 plus 25?",
    "Give me a recipe for pancakes.",
    "Who wrote Romeo and Juliet?",
    "Summarise the water cycle for a child.",
    "Write a Python function that reverses a string.",
    "Name the planets of the solar system.",
    "What should I pack for a week in the mountains?",
    "Describe a cat without using the word 'cat'.",
    "How does a bicycle stay upright?",
    "Write the opening line of a mystery novel.",
    "What is the difference between weather and climate?",
    "Suggest a name for a bakery and say why.",
    "Explain what a prime number is.",
    "Write a polite e-mail declining an invitation.",
    "Why do leaves change colour in autumn?",
)


@dataclass(frozen=True, slots=True)
class Parting:
    """One prompt's outcome. ``at`` is the first differing output token, None where the two agree to the end."""

    prompt: str
    tokens: int
    at: int | None = None
    bireme: str = ""
    llama: str = ""
    bireme_gap: float | None = None  # of log-probabilities: its own choice's less the other's; None: not in its top
    llama_gap: float | None = None  # of logits, likewise


def main() -> int:
    parser = argparse.ArgumentParser(prog="bireme.bench.agree", description=__doc__)
    parser.add_argument("--model", default="demo", help="a GGUF file, or a name for one")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--precision", choices=["fast", "exact"], default="fast")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--json", help="also write the outcome to this file")
    asked = parser.parse_args()
    model, machine = resolve(asked.model), describe()
    checkpoint: Any = open_checkpoint(model)
    tokenizer = Tokenizer.from_files(checkpoint.tokenizer, checkpoint.config.vocab_size)
    template = ChatTemplate.from_files(checkpoint.tokenizer, tokenizer)
    prompts = [list(template.render([{"role": "user", "content": text}])) for text in QUESTIONS]
    ours = _bireme(checkpoint, prompts, asked)
    theirs = LlamaModel(model, 1024, asked.threads)
    found = []
    for text, ids, (tokens, logprobs) in zip(QUESTIONS, prompts, ours, strict=True):
        found.append(_compare(text, ids, tokens, logprobs, theirs, tokenizer))
        print(_line(found[-1]), flush=True)
    theirs.close()
    same = sum(part.at is None for part in found)
    print(
        f"\n{line(machine)}\n\n{same} of {len(found)} prompts give the same {asked.tokens} tokens ({asked.precision})"
    )
    if asked.json:
        content = {"machine": machine, "precision": asked.precision, "prompts": [asdict(part) for part in found]}
        Path(asked.json).write_text(json.dumps(content, indent=1), encoding="utf-8")
    return same * 10 < len(found) * 9


def _bireme(
    checkpoint: Any, prompts: Sequence[Sequence[int]], asked: argparse.Namespace
) -> list[tuple[list[int], list[TokenLogprob]]]:
    """Greedy tokens of every prompt, alone in the engine, with the likeliest tokens at each position."""
    config = EngineConfig(max_num_seqs=1, max_model_len=1024, enable_prefix_caching=False)
    backend = load_backend("cpu", checkpoint, config, BackendOptions(asked.precision, asked.threads))
    engine = Engine(backend, config)
    params = SamplingParams(max_tokens=asked.tokens, temperature=0.0, logprobs=5)
    found = []
    for number, ids in enumerate(prompts):
        engine.add(Request(str(number), tuple(ids), params))
        tokens: list[int] = []
        logprobs: list[TokenLogprob] = []
        while engine.has_work():
            for output in engine.step():
                tokens += output.token_ids
                logprobs += output.logprobs or ()
        found.append((tokens, logprobs))
    engine.close()
    return found


def _compare(
    text: str,
    prompt: list[int],
    tokens: list[int],
    logprobs: Sequence[TokenLogprob],
    llama: LlamaModel,
    tokenizer: Tokenizer,
) -> Parting:
    """Follow ``tokens`` in llama.cpp until it would choose another."""
    logits = llama.logits(prompt)[-1]
    for at, (token, seen) in enumerate(zip(tokens, logprobs, strict=True)):
        other = int(np.argmax(logits))
        if other != token:
            top = dict(zip(seen.top_ids, seen.top_logprobs, strict=True))
            gap = seen.logprob - top[other] if other in top else None
            names = (tokenizer.token_text(token), tokenizer.token_text(other))
            return Parting(text, len(tokens), at, *names, gap, float(logits[other] - logits[token]))
        logits = llama.extend([token], len(prompt) + at)[-1]
    return Parting(text, len(tokens))


def _line(part: Parting) -> str:
    if part.at is None:
        return f"same {part.tokens:3d} tokens            {part.prompt}"
    gap = "beyond its top 5" if part.bireme_gap is None else f"{part.bireme_gap:.3f}"
    return (
        f"part at {part.at:3d} of {part.tokens:3d}  {part.prompt}  Bireme {part.bireme!r} (by {gap}), "
        f"llama.cpp {part.llama!r} (by {part.llama_gap:.3f})"
    )


if __name__ == "__main__":
    raise SystemExit(main())
