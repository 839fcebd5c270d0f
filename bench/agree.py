"""Where greedy texts of Bireme and llama.cpp part, and how far each parts from itself: ``make agree``.

Twenty chat prompts, rendered once to the ids that every way of computing gets; each takes the most likely token until
its text ends or has ``--tokens`` tokens. The texts are then compared in pairs. Two full-precision ways must agree: that
shows that both compute the same model. Ways that round activations to 8 bits are printed beside the same engine with
another order of the same sums, which says how much of their parting is rounding and not a fault.

Where two texts part, the gap is the exact way's logit of its first choice less that of its second.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..backends.select import usable_cores
from ..models.checkpoint import open_checkpoint
from ..models.hub import resolve
from ..models.template import ChatTemplate
from ..models.tokenizer import Tokenizer
from .greedy import Followed, Running, Way, follow
from .machine import describe, line
from .requantise import as_float32, nudged

QUESTIONS = (
    "Tell me about the capital of France and its history.",
    "Explain in a few sentences why the sky is blue.",
    "Write a poem of four verses about the sea.",
    "List ten uses of a paper clip.",
    "Explain how to greet people politely in Spanish.",
    "Explain step by step how to add 17 and 25.",
    "Give me a recipe for pancakes.",
    "Who wrote Romeo and Juliet, and what is it about?",
    "Summarise the water cycle for a child.",
    "Write a Python function that reverses a string and explain it.",
    "Describe the planets of the solar system in order.",
    "What should I pack for a week in the mountains?",
    "Describe a cat without using the word 'cat'.",
    "How does a bicycle stay upright?",
    "Write the opening paragraph of a mystery novel.",
    "What is the difference between weather and climate?",
    "Suggest a name for a bakery and say why.",
    "Explain what a prime number is.",
    "Write a polite e-mail declining an invitation.",
    "Why do leaves change colour in autumn?",
)

EXACT, FAST, LLAMA, LLAMA_32 = "Bireme exact", "Bireme fast", "llama.cpp", "llama.cpp float32"
PAIRS = (
    ("full precision on both sides", EXACT, LLAMA_32),
    ("as both come", FAST, LLAMA),
    ("llama.cpp and itself: attention in float32", LLAMA, "llama.cpp, float32 attention"),
    ("llama.cpp and itself: prompt read 8 tokens at once", LLAMA, "llama.cpp, chunks of 8"),
    ("llama.cpp and itself: norms changed by 1e-6", LLAMA, "llama.cpp, nudged"),
    ("llama.cpp and its full precision", LLAMA, LLAMA_32),
    ("Bireme and itself: all prompts at once, in chunks", FAST, "Bireme fast, together"),
    ("Bireme and itself: norms changed by 1e-6", FAST, "Bireme fast, nudged"),
    ("Bireme and its full precision", FAST, EXACT),
    ("full precision and itself: norms changed by 1e-6", LLAMA_32, "llama.cpp float32, nudged"),
)
BOUND = 0.9  # share of prompts on which the first pair must agree


@dataclass(frozen=True, slots=True)
class Parting:
    """Where two texts of one prompt first differ."""

    prompt: str
    at: int  # output tokens before it
    tokens: tuple[str, str]
    gap: float  # between the exact way's first and second choice, in logits
    between: float  # between the two tokens, as the exact way has them; positive: the first pair member's is likelier


@dataclass(frozen=True, slots=True)
class Pair:
    """One row of the table."""

    what: str
    ways: tuple[str, str]
    prompts: int
    agree: int
    until: float  # mean tokens until the texts part or end
    other_top: float  # share of the exact texts' positions at which the most likely token differs
    noise: float  # root mean square of the difference between the two ways' gaps, in logits
    partings: list[Parting]


def ways(model: Path) -> list[Way]:
    """Every way of ``PAIRS``, the exact one first."""
    full, moved = as_float32(model), nudged(model)
    return [
        Way(EXACT, "bireme", model, precision="exact", together=True),  # quicker by far, and just as exact
        Way(FAST, "bireme", model),
        Way("Bireme fast, together", "bireme", model, chunk=32, together=True),
        Way("Bireme fast, nudged", "bireme", moved),
        Way(LLAMA, "llama.cpp", model),
        Way("llama.cpp, float32 attention", "llama.cpp", model, float32_attention=True),
        Way("llama.cpp, chunks of 8", "llama.cpp", model, chunk=8),
        Way("llama.cpp, nudged", "llama.cpp", moved),
        Way(LLAMA_32, "llama.cpp", full, float32_attention=True),
        Way("llama.cpp float32, nudged", "llama.cpp", nudged(full), float32_attention=True),
    ]


class Comparison:
    """Texts of every way, its view of the exact way's texts, and the exact way kept open to ask for gaps."""

    def __init__(self, prompts: list[list[int]], tokenizer: Tokenizer, questions: Sequence[str] = QUESTIONS) -> None:
        self.texts: dict[str, list[list[int]]] = {}
        self._prompts, self._tokenizer, self._questions = prompts, tokenizer, questions
        self._followed: dict[str, Followed] = {}
        self._exact: Running | None = None
        self._top_two: Any = None

    def run(self, way: Way, threads: int, tokens: int, ends: frozenset[int]) -> None:
        """Make and follow texts; the first way to run is the exact one."""
        started, running = time.monotonic(), Running(way, threads)
        texts = self.texts[way.name] = running.texts(self._prompts, tokens, ends)
        exact = next(iter(self.texts.values()))
        self._followed[way.name], top_two = follow(running, self._prompts, exact, self._top_two)
        if self._exact is None:
            self._exact, self._top_two = running, top_two
        else:
            running.close()
        taken = time.monotonic() - started
        print(f"{way.name}: {sum(map(len, texts))} tokens, {taken:.0f} s", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._exact is not None:
            self._exact.close()

    def pair(self, what: str, first: str, second: str) -> Pair:
        texts = list(zip(self.texts[first], self.texts[second], strict=True))
        until = [parts_at(one, other) for one, other in texts]
        found = [self._parting(i, at, *texts[i]) for i, at in enumerate(until) if at is not None]
        ours, theirs = self._followed[first], self._followed[second]
        return Pair(
            what=what,
            ways=(first, second),
            prompts=len(texts),
            agree=until.count(None),
            until=float(np.mean([len(one) if at is None else at for at, (one, _) in zip(until, texts, strict=True)])),
            other_top=float(np.mean(ours.top != theirs.top)),
            noise=float(np.sqrt(np.mean((ours.gap - theirs.gap) ** 2))),
            partings=found,
        )

    def _parting(self, number: int, at: int, first: list[int], second: list[int]) -> Parting:
        """The gap comes from the exact way's own logits after the words both texts share."""
        assert self._exact is not None
        logits = self._exact.logits([*self._prompts[number], *first[:at]])[-1]
        best = np.sort(logits)[-2:]
        chosen = [text[at] if at < len(text) else None for text in (first, second)]
        names = tuple("(nothing)" if i is None else self._tokenizer.token_text(i) for i in chosen)
        values = [float("nan") if i is None else float(logits[i]) for i in chosen]
        gap = float(best[1] - best[0])
        return Parting(self._questions[number], at, (names[0], names[1]), gap, values[0] - values[1])


def parts_at(first: Sequence[int], second: Sequence[int]) -> int | None:
    """How many tokens the two share before they differ; None if they are the same."""
    if list(first) == list(second):
        return None
    return next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


def table(pairs: Sequence[Pair]) -> str:
    """One row per pair."""
    lines = [
        "| pair | same text | mean tokens until they part | other top token | gap noise | largest gap at a parting |",
        "|---|---|---|---|---|---|",
    ]
    for pair in pairs:
        largest = max((part.gap for part in pair.partings), default=None)
        lines.append(
            f"| {pair.what} ({' / '.join(pair.ways)}) | {pair.agree} of {pair.prompts} | {pair.until:.1f} | "
            f"{pair.other_top:.1%} | {pair.noise:.2g} | {'-' if largest is None else f'{largest:.2g}'} |"
        )
    return "\n".join(lines)


def partings(pair: Pair) -> str:
    """Every parting of one pair, a line each."""
    lines = [f"{pair.what} ({' / '.join(pair.ways)}):"]
    for part in pair.partings:
        first, second = part.tokens
        lines.append(
            f"  after {part.at:2d} tokens  {first!r} / {second!r}  gap {part.gap:.2g}, "
            f"between them {part.between:+.2g}  {part.prompt}"
        )
    return "\n".join(lines if pair.partings else [f"{lines[0]} no parting"])


def main() -> int:
    parser = argparse.ArgumentParser(prog="bireme.bench.agree", description=__doc__)
    parser.add_argument("--model", default="demo", help="a GGUF file, or a name for one")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--json", help="also write the outcome to this file")
    asked = parser.parse_args()
    model, machine = resolve(asked.model), describe()
    checkpoint: Any = open_checkpoint(model)
    tokenizer = Tokenizer.from_files(checkpoint.tokenizer, checkpoint.config.vocab_size)
    template = ChatTemplate.from_files(checkpoint.tokenizer, tokenizer)
    prompts = [list(template.render([{"role": "user", "content": text}])) for text in QUESTIONS]
    comparison = Comparison(prompts, tokenizer)
    for way in ways(model):
        comparison.run(way, asked.threads, asked.tokens, checkpoint.end_ids)
    pairs = [comparison.pair(*names) for names in PAIRS]
    comparison.close()
    lengths = [len(text) for text in comparison.texts[EXACT]]
    print(f"{line(machine)}\n")
    print(
        f"{len(prompts)} prompts of {min(map(len, prompts))} to {max(map(len, prompts))} tokens; the exact texts have"
    )
    print(f"{min(lengths)} to {max(lengths)} tokens, {np.mean(lengths):.1f} on average\n\n{table(pairs)}\n")
    print("\n\n".join(partings(pair) for pair in pairs))
    if asked.json:
        content = {"machine": machine, "pairs": [asdict(pair) for pair in pairs], "texts": comparison.texts}
        Path(asked.json).write_text(json.dumps(content, indent=1), encoding="utf-8")
    good = pairs[0].agree >= BOUND * len(prompts)
    verdict = "kept" if good else "BROKEN"
    print(f"\nfull precision: {pairs[0].agree} of {len(prompts)} texts agree; the bound is {BOUND:.0%}: {verdict}")
    return not good


if __name__ == "__main__":
    raise SystemExit(main())
