"""A closed loop, run and summed up in one call."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from .ask import Prompt, Sample, Session, Target
from .level import Level, Load
from .load import closed_samples
from .pulse import Pulse
from .summary import summarise


def closed_level(target: Target, prompts: Sequence[Prompt], users: int) -> Level:
    """``users`` at once, each asking the next of ``prompts`` when its last answer ended."""
    pulse = Pulse()

    async def run() -> list[Sample]:
        async with pulse:
            return await closed_samples(target, [Session((prompt,)) for prompt in prompts], users)

    samples = asyncio.run(run())
    return summarise(samples, Load("closed", users, None), generator_cpu=pulse.busy, generator_late_ms=pulse.late_ms())
