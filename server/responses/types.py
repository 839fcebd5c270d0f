"""Request bodies of the Responses API (https://platform.openai.com/docs/api-reference/responses)."""

from __future__ import annotations

from typing import Any

import msgspec

from ..openai_types import GenerationRequest

#: An input or output item; kinds are told apart by ``type``.
Item = dict[str, Any]


class ReasoningOptions(msgspec.Struct, kw_only=True):
    """How much to think, and whether to tell it as a summary."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None  # the older name


class TextOptions(msgspec.Struct, kw_only=True):
    """What the answer's text must be."""

    format: dict[str, Any] | None = None
    verbosity: str | None = None


class ResponsesRequest(GenerationRequest, kw_only=True):
    """``POST /v1/responses``. The fields of other endpoints' sampling work here too."""

    input: str | list[Any] | None = None
    instructions: str | list[Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None
    include: list[str] | None = None
    top_logprobs: int | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None
    background: bool | None = None
    truncation: str | None = None
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def wants_summary(self) -> bool:
        """Whether reasoning is told as a summary."""
        asked = self.reasoning
        return asked is not None and (asked.summary or asked.generate_summary) not in (None, "none")

    @property
    def wants_sealed(self) -> bool:
        """Whether reasoning items carry a token that brings them back."""
        return "reasoning.encrypted_content" in (self.include or ())

    @property
    def wants_logprobs(self) -> bool:
        return "message.output_text.logprobs" in (self.include or ()) or bool(self.top_logprobs)
