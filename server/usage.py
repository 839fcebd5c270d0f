"""The ``usage`` object."""

from __future__ import annotations

from typing import Any

from .generation import GenerationGroup


def usage_of(group: GenerationGroup, thought_tokens: int = 0) -> dict[str, Any]:
    """Prompts count once whatever ``n``; end tokens count as completion tokens: they were generated, and so were those
    of reasoning."""
    prompt, completion = group.prompt_tokens, group.completion_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": group.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": thought_tokens},
    }
