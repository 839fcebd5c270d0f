"""Request bodies of the OpenAI-compatible endpoints.

Every field may be null, which means 'not given'; unknown fields are accepted and ignored. Types are checked strictly
(a string is never taken for a number); ranges are checked in ``params.py``.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, TypeVar

import msgspec

from .errors import bad_request


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SharedRequest(msgspec.Struct, kw_only=True):
    """Fields of everything that the engine works on: which model, and for whom."""

    prompt_field: ClassVar[str] = "prompt"  # where the prompt comes from; errors about it name it
    operation: ClassVar[str] = "text_completion"  # in traces, as OpenTelemetry's conventions for generative AI name it

    model: str | None = None
    priority: int | None = None
    user: str | None = None
    cache_salt: str | None = None
    prompt_cache_key: str | None = None
    add_special_tokens: bool | None = None


class GenerationRequest(SharedRequest, kw_only=True):
    """Fields that chat and text completions share."""

    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: str | dict[str, Any] | bool | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    json_schema: str | dict[str, Any] | bool | None = None
    grammar: str | None = None
    # What other servers take and this one doesn't do; see ``params.refuse_unsupported``.
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    prompt_logprobs: int | None = None
    truncate_prompt_tokens: int | None = None
    use_beam_search: bool | None = None


class ChatRequest(GenerationRequest, kw_only=True):
    """``POST /v1/chat/completions``."""

    prompt_field: ClassVar[str] = "messages"
    operation: ClassVar[str] = "chat"

    messages: list[dict[str, Any]] | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    functions: list[dict[str, Any]] | None = None
    function_call: str | dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    echo: bool | None = None
    reasoning_effort: str | None = None
    modalities: list[str] | None = None
    audio: dict[str, Any] | None = None
    web_search_options: dict[str, Any] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class CompletionRequest(GenerationRequest, kw_only=True):
    """``POST /v1/completions``."""

    prompt: str | list[Any] | None = None
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None


class EmbeddingRequest(SharedRequest, kw_only=True):
    """``POST /v1/embeddings``."""

    prompt_field: ClassVar[str] = "input"
    operation: ClassVar[str] = "embeddings"

    input: str | list[Any] | None = None
    encoding_format: str | None = None
    dimensions: int | None = None


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """``POST /tokenize``: a text, or chat messages as the chat endpoint would render them."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """``POST /detokenize``."""

    model: str | None = None
    tokens: Annotated[list[int], msgspec.Meta(max_length=10_000_000)] | None = None


T = TypeVar("T")


def parse(body: bytes, kind: type[T]) -> T:
    """Decode a JSON body. Raises ``ApiError`` 400 that names the field."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$.")
        field = path.rstrip("`") or None
        name = field.split("[")[0].split(".")[0] if field else None
        raise bad_request(f"{field}: {text[0].lower()}{text[1:]}" if field else text, name) from None
    except msgspec.DecodeError as error:
        raise bad_request(f"The body is not valid JSON (UTF-8, no lone surrogates): {error}") from None
    except RecursionError:
        raise bad_request("The body is nested too deeply.") from None


def wants_usage(options: StreamOptions | None) -> tuple[bool, bool]:
    """Whether a stream ends with a usage chunk, and whether every chunk carries usage."""
    if options is None:
        return False, False
    return bool(options.include_usage), bool(options.include_usage and options.continuous_usage_stats)
