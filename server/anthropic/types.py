"""Request bodies of Anthropic's Messages API (https://docs.anthropic.com/en/api/messages)."""

from __future__ import annotations

from typing import Any

import msgspec

from ..openai_types import GenerationRequest

#: A part of a message; kinds are told apart by ``type``.
Block = dict[str, Any]


class Thinking(msgspec.Struct, kw_only=True):
    """Whether the model thinks before it answers. No budget can be kept: it is accepted and not looked at."""

    type: str | None = None
    budget_tokens: int | None = None
    display: str | None = None


class OutputConfig(msgspec.Struct, kw_only=True):
    """How much effort to take, and what the answer must match."""

    effort: str | None = None
    format: dict[str, Any] | None = None


class RequestMetadata(msgspec.Struct, kw_only=True):
    user_id: str | None = None


class MessagesRequest(GenerationRequest, kw_only=True):
    """``POST /v1/messages`` and ``/v1/messages/count_tokens``. Other endpoints' sampling fields work here too."""

    messages: list[dict[str, Any]] | None = None
    system: str | list[dict[str, Any]] | None = None
    stop_sequences: list[str] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: Thinking | None = None
    metadata: RequestMetadata | None = None
    output_config: OutputConfig | None = None
    output_format: dict[str, Any] | None = None
    mcp_servers: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def effort(self) -> str | None:
        return None if self.output_config is None else self.output_config.effort

    @property
    def hides_thoughts(self) -> bool:
        """Whether thinking is only kept for the next turn, and not shown."""
        return self.thinking is not None and self.thinking.display == "omitted"
