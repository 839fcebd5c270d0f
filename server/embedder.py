"""Texts to pooled hidden states, a few at a time: what /v1/embeddings and all that compares texts go through."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request

from ..core.request import SamplingParams
from .errors import bad_request
from .fold import read_all
from .generation import GenerationGroup
from .openai_types import SharedRequest
from .params import TextRules
from .prompts import Prompt
from .state import ServerState

#: Texts of one request that the engine has at once: enough to fill its steps, and not its queue.
AT_ONCE = 32


async def pooled_states(
    http: Request, state: ServerState, body: SharedRequest, prompts: Sequence[Prompt]
) -> tuple[list[bytes], int]:
    """The pooled state of each prompt, in order, and how many tokens the cache saved. Raises ``ApiError``."""
    frontend = state.ready()
    if frontend.pooling is None:
        raise bad_request("This model's files name a pooling that this server doesn't know.", "model")
    params = SamplingParams(max_tokens=1, temperature=0.0, pooling=frontend.pooling)
    for prompt in prompts:
        state.check_length(len(prompt.ids), body.prompt_field)
    found: list[bytes] = []
    cached = 0
    for start in range(0, len(prompts), AT_ONCE):
        part = prompts[start : start + AT_ONCE]
        group = GenerationGroup([state.generation(http, body, one.ids, params, TextRules()) for one in part])
        await read_all(group, lambda piece: None)
        found += [one.embedding for one in group.generations if one.embedding is not None]
        cached += group.cached_tokens
    assert len(found) == len(prompts), "an embedding is missing"
    return found, cached
