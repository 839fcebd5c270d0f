"""A data set by name and sizes, and what was drawn from one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .ask import Prompt, Session
from .sources import Content

#: Tokens out where nothing says how many.
USUAL_OUTPUT = 128
#: Those that are read from a file, and all.
FILES = ("sharegpt", "jsonl", "trace")
#: Those of them whose prompts are the file's own texts.
TEXTS = ("sharegpt", "jsonl")
DATASETS = ("random", "prefix", "multiturn", *FILES)


@dataclass(frozen=True, slots=True)
class DataSpec:
    """Which requests. Lengths are tokens."""

    kind: str = "random"
    path: Path | None = None
    input_len: int = 256
    output_len: int | None = None  # None: ``USUAL_OUTPUT``, or what the file says
    range_ratio: float = 0.0  # lengths vary evenly by so much either way
    prefix_len: int = 512
    num_prefixes: int = 4
    turns: int = 4
    think: float = 0.0
    chat: bool = False
    seed: int = 0

    def sessions(self, requests: int) -> int:
        """How many sessions make so many requests; at least one."""
        return max(1, requests // self.turns) if self.kind == "multiturn" else requests

    @property
    def unit(self) -> str:
        """What an open loop sends so many of a second."""
        return "conversations" if self.kind == "multiturn" else "req"

    def __post_init__(self) -> None:
        if self.kind not in DATASETS:
            raise ValueError(f"dataset is {self.kind!r}; it must be one of {', '.join(DATASETS)}")
        if self.kind in FILES and self.path is None:
            raise ValueError(f"dataset {self.kind} needs --dataset-path")
        if not 0 <= self.range_ratio < 1:
            raise ValueError(f"range-ratio is {self.range_ratio}; it must be 0 or more and below 1")


@dataclass(frozen=True, slots=True)
class Drawn:
    """Sessions, and for a trace when each is due. ``notes``: what a reader must know of them."""

    sessions: list[Session]
    due: list[float] | None = None
    notes: tuple[str, ...] = ()


def make_prompt(content: Content, max_tokens: int, chat: bool) -> Prompt:
    """What one request asks; text goes into a user's message where ``chat`` is set."""
    if chat and isinstance(content, str):
        return Prompt(({"role": "user", "content": content},), max_tokens)
    return Prompt(content, max_tokens)
