"""Chat templates: messages to prompt ids, in which nothing a user wrote is ever a control token.

A template is rendered as text, and its own control tokens ("<|im_start|>") are told from the same words in a message by
a guard: one private character that goes into every place of a message where a control token's text begins, and comes
out once the rendered text was cut at its control tokens. It survives trimming, splitting, joining and JSON.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import jinja2
from jinja2 import nodes

from .guard import cut_like, guarded_places, unused_character
from .jinja import Refusal, TemplateEnvironment, render
from .messages import MessageShape, TemplateError, normalize
from .tool_prompt import has_calls, introduce, write_out
from .weight import TokenizerFiles

__all__ = ["ChatTemplate", "TemplateError"]

_PROBE = "bireme probe"
#: Mistral's templates refuse ids of tool calls that have another length.
_SHORT_IDS = re.compile(r"length\s*(?:!=|<)\s*9\b")


class _Encoder(Protocol):
    bos_id: int | None
    eos_id: int | None

    @property
    def control_literals(self) -> tuple[str, ...]: ...

    @property
    def adds_bos_to_chat(self) -> bool: ...

    def encode(self, text: str, *, add_special_tokens: bool, parse_special: bool, guard: str) -> list[int]: ...


class ChatTemplate:
    """A model's chat format. Rendering changes nothing here, so threads may share it."""

    def __init__(self, templates: Mapping[str, str], tokenizer: _Encoder, bos_token: str, eos_token: str) -> None:
        self._tokenizer = tokenizer
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        environment = TemplateEnvironment()
        self._named = {
            name: _Compiled(source, environment, tokenizer, self._tokens) for name, source in templates.items()
        }

    @classmethod
    def from_files(cls, files: TokenizerFiles, tokenizer: Any) -> ChatTemplate:
        """A model without a template still makes a ``ChatTemplate``: rendering is what fails, with a clear sentence."""
        return cls(
            _templates(files),
            tokenizer,
            _literal(files.bos_token, tokenizer.bos_id, tokenizer),
            _literal(files.eos_token, tokenizer.eos_id, tokenizer),
        )

    @property
    def available(self) -> bool:
        """Whether the model has a chat template at all."""
        return bool(self._named)

    @property
    def source(self) -> str:
        """All templates' text; formats are found by marks in it."""
        return "\n".join(one.source for one in self._named.values())

    @property
    def takes_tools(self) -> bool:
        """Whether a template has a place for tools; otherwise ``render`` puts them into the system's words."""
        return any(one.takes_tools for one in self._named.values())

    @property
    def variables(self) -> frozenset[str]:
        """Every name that a template looks up: an option of another name changes nothing."""
        return frozenset().union(*(one.names for one in self._named.values()))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> list[int]:
        """Prompt ids. ``variables`` go to the template (``enable_thinking`` and the like).

        BOS comes from the template; only for a GGUF file that asks for BOS is one added where the template wrote none.

        Raises:
            TemplateError: no template, messages it can't take, or its own refusal.
        """
        guard, text = self._guarded(messages, tools, add_generation_prompt, variables)
        tokenizer = self._tokenizer
        return tokenizer.encode(text, add_special_tokens=tokenizer.adds_bos_to_chat, parse_special=True, guard=guard)

    def text(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The rendered prompt as text, in which users' words and control tokens can't be told apart any more."""
        guard, text = self._guarded(messages, tools, add_generation_prompt, variables)
        return text.replace(guard, "")

    def _guarded(
        self, messages: Any, tools: Any, add_generation_prompt: bool, variables: Mapping[str, Any]
    ) -> tuple[str, str]:
        template = self._choose(bool(tools))
        guard = unused_character((messages, tools, variables, template.source))
        values = {**variables, "tools": list(tools) if tools else None, "add_generation_prompt": add_generation_prompt}
        return guard, template.render(messages, values, guard)

    def _choose(self, with_tools: bool) -> _Compiled:
        if not self._named:
            raise TemplateError(
                "this model has no chat template: it can't take chat messages. Use /v1/completions with a prompt "
                "written for the model, or a model file that carries a template"
            )
        wanted = ("tool_use", "default") if with_tools else ("default",)
        return next((self._named[name] for name in wanted if name in self._named), next(iter(self._named.values())))


class _Compiled:
    """One template, and what it was found to expect."""

    def __init__(
        self, source: str, environment: TemplateEnvironment, tokenizer: _Encoder, tokens: Mapping[str, str]
    ) -> None:
        self.source = source
        self._tokens = tokens
        self._error: str | None = None
        self._places = guarded_places(source, environment, tokenizer.control_literals)
        self.names = _names(source, environment)
        self.takes_tools = "tools" in self.names
        self._takes_calls = "tool_calls" in source
        self._shape = MessageShape()
        try:
            self._template = environment.from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            self._error = f"the model's chat template can't be read: {error}"
            return
        as_parts = not self._takes(as_parts=False) and self._takes(as_parts=True)
        self._shape = MessageShape(as_parts=as_parts)
        self._shape = MessageShape(
            as_parts=as_parts,
            keep_developer="developer" in source,
            string_arguments=self._takes_calls and self._joins_arguments(),
            short_ids=_SHORT_IDS.search(source) is not None,
        )

    def render(self, messages: Any, values: Mapping[str, Any], guard: str) -> str:
        if self._error is not None:
            raise TemplateError(self._error)
        tools = values.get("tools")
        if not self.takes_tools and (tools or (not self._takes_calls and has_calls(messages))):
            messages, values = self._without_tools(messages, tools), {**values, "tools": None}
        clean = normalize(messages, self._shape)
        guarded = {key: self._guard(value, guard) for key, value in values.items()}
        return self._run({**guarded, "messages": self._guard(clean, guard)})

    def _without_tools(self, messages: Any, tools: Any) -> list[dict[str, Any]]:
        """The conversation for a template that knows no tools: all that it wouldn't show stands in its texts."""
        plain = normalize(messages, MessageShape(keep_developer=self._shape.keep_developer, string_arguments=True))
        if not self._takes_calls:
            plain = write_out(plain)
        if not tools:
            return plain
        return introduce(plain, tools, takes_system=self._takes(self._shape.as_parts, role="system"))

    def _run(self, variables: Mapping[str, Any]) -> str:
        try:
            return render(self._template, {**variables, **self._tokens})
        except Refusal as refusal:
            raise TemplateError(str(refusal)) from refusal
        except Exception as error:  # a template is a program: it may fail in any way Python can
            raise TemplateError(f"the model's chat template failed on these messages: {error}") from error

    def _guard(self, value: Any, guard: str) -> Any:
        """A copy of ``value`` with the guard in every string, wherever a control token's text could begin."""
        if isinstance(value, str):
            return self._places.sub(lambda match: match[0][0] + guard + match[0][1:], value) if self._places else value
        if isinstance(value, Mapping):
            return {self._guard(key, guard): self._guard_item(key, item, guard) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._guard(item, guard) for item in value]
        return value

    def _guard_item(self, key: Any, item: Any, guard: str) -> Any:
        if key == "role":
            return item
        if key == "content" and isinstance(item, list):
            return cut_like(item, self._guard("".join(part["text"] for part in item), guard), guard)
        return self._guard(item, guard)

    def _takes(self, as_parts: bool, role: str = "user") -> bool:
        """Whether content of this shape comes out as its text."""
        content: Any = [{"type": "text", "text": _PROBE}] if as_parts else _PROBE
        plain: Any = [{"type": "text", "text": "a"}] if as_parts else "a"
        after = [] if role == "user" else [{"role": "user", "content": plain}]
        try:
            return _PROBE in self._run(_probe_values([{"role": role, "content": content}, *after]))
        except TemplateError:
            return False

    def _joins_arguments(self) -> bool:
        """Whether arguments given as an object come out as Python's repr, or not at all."""
        call = {"type": "function", "id": "call00000", "function": {"name": "probe", "arguments": {"probe": "a"}}}
        content: Any = [{"type": "text", "text": ""}] if self._shape.as_parts else ""
        messages = [
            {"role": "user", "content": [{"type": "text", "text": "a"}] if self._shape.as_parts else "a"},
            {"role": "assistant", "content": content, "tool_calls": [call]},
        ]
        try:
            return "{'probe'" in self._run(_probe_values(messages))
        except TemplateError as error:
            return isinstance(error.__cause__, TypeError)


def _probe_values(messages: list[dict[str, Any]]) -> dict[str, Any]:
    return {"messages": messages, "tools": None, "add_generation_prompt": True}


def _templates(files: TokenizerFiles) -> dict[str, str]:
    """Every template the files hold, by name; the plain one is "default"."""
    templates: dict[str, str] = {}
    if files.chat_template:
        templates["default"] = files.chat_template
    prefix = "tokenizer.chat_template."
    for key, value in (files.gguf_metadata or {}).items():
        if key.startswith(prefix) and isinstance(value, str):
            templates.setdefault(key.removeprefix(prefix), value)
    named = files.extra.get("chat_templates", {})
    for name, value in named.items() if isinstance(named, Mapping) else ():
        templates.setdefault(name, value)
    return templates


def _literal(token: str | None, token_id: int | None, tokenizer: Any) -> str:
    """A special token's text: always defined, empty where the model has none."""
    if token is not None:
        return token
    return tokenizer.token_text(token_id) if token_id is not None else ""


def _names(source: str, environment: TemplateEnvironment) -> frozenset[str]:
    """The variables a template reads."""
    try:
        tree = environment.parse(source)
    except (jinja2.TemplateError, RecursionError):
        return frozenset()
    return frozenset(node.name for node in tree.find_all(nodes.Name))
