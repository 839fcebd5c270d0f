"""What the requests ask: synthetic texts of a given length, or files of conversations, prompts and traces.

Every level of a run draws anew, so that no level finds the prompts of the one before in a prefix cache.
"""

from __future__ import annotations

import random

from .ask import Prompt, Session
from .data_files import read_drawn
from .dataset import FILES, USUAL_OUTPUT, DataSpec, Drawn, make_prompt
from .sources import Source


def draw(spec: DataSpec, source: Source, count: int, number: int = 0, before: int = 0) -> Drawn:
    """``count`` sessions for level ``number`` of a run; a file's begin where the ``before`` of earlier levels ended.

    Raises:
        ValueError: the file can't be read or holds nothing usable.
    """
    if spec.kind in FILES:
        return read_drawn(spec, source, count, before)
    rng = random.Random(f"{spec.seed} {number}")
    if spec.kind == "multiturn":
        return Drawn([_conversation(spec, source, rng) for _ in range(spec.sessions(count))])
    heads = [source.draw(rng, spec.prefix_len) for _ in range(spec.num_prefixes)] if spec.kind == "prefix" else []
    sessions = []
    for i in range(count):
        head = heads[i % len(heads)] if heads else source.empty()
        text = head + source.draw(rng, _vary(rng, spec.input_len, spec.range_ratio))
        answer = _vary(rng, spec.output_len or USUAL_OUTPUT, spec.range_ratio)
        sessions.append(Session((make_prompt(text, answer, spec.chat),)))
    rng.shuffle(sessions)
    return Drawn(sessions)


def _vary(rng: random.Random, length: int, ratio: float) -> int:
    return rng.randint(max(1, int(length * (1 - ratio))), max(1, int(-(-length * (1 + ratio) // 1))))


def _conversation(spec: DataSpec, source: Source, rng: random.Random) -> Session:
    turns = []
    for _ in range(spec.turns):
        text = source.draw(rng, _vary(rng, spec.input_len, spec.range_ratio))
        length = _vary(rng, spec.output_len or USUAL_OUTPUT, spec.range_ratio)
        turns.append(Prompt(({"role": "user", "content": text},) if isinstance(text, str) else text, length))
    return Session(tuple(turns), spec.think)
