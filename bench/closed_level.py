"""A closed loop, run and summed up in one call."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from .ask import Prompt, Session, Target
from .level import Level, Load
from .load import closed_samples
from .summary import summarise


def closed_level(target: Target, prompts: Sequence[Prompt], users: int) -> Level:
    """``users`` at once, each asking the next of ``prompts`` when its last answer ended."""
    sessions = [Session((prompt,)) for prompt in prompts]
    return summarise(asyncio.run(closed_samples(target, sessions, users)), Load("closed", users, None))
