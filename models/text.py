"""A model's text side in one record: what the server and ``LLM`` both need around an engine that knows only tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.output import OutputText, SequenceText
from .template import ChatTemplate
from .tokenizer import Tokenizer
from .weight import TokenizerFiles


@dataclass(frozen=True, slots=True)
class TextModel:
    """Prompts to ids, ids to text. Holds no weights; threads may share it."""

    tokenizer: Tokenizer
    template: ChatTemplate

    @classmethod
    def from_files(cls, files: TokenizerFiles, vocab_size: int) -> TextModel:
        """Raises ``CheckpointError`` when the tokenizer can't be read; a missing template is no error yet."""
        tokenizer = Tokenizer.from_files(files, vocab_size)
        return cls(tokenizer, ChatTemplate.from_files(files, tokenizer))

    def prompt_ids(self, prompt: str | Sequence[int], add_special_tokens: bool = True) -> tuple[int, ...]:
        """Ids of a prompt. Ids given as ids stay as they are; to text BOS is added as the tokenizer says, once.

        Raises:
            ValueError: an id outside the vocabulary.
        """
        if isinstance(prompt, str):
            return tuple(self.tokenizer.encode(prompt, add_special_tokens=add_special_tokens))
        ids = tuple(int(token_id) for token_id in prompt)
        for token_id in ids:
            if not 0 <= token_id < self.tokenizer.vocab_size:
                raise ValueError(
                    f"token id {token_id} is out of range; this model's ids run from 0 to "
                    f"{self.tokenizer.vocab_size - 1}"
                )
        return ids

    def chat_ids(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> tuple[int, ...]:
        """Ids of a conversation. Raises ``TemplateError`` (a ``ValueError``) in the template's own words."""
        return tuple(self.template.render(messages, tools, add_generation_prompt, **variables))

    def output(
        self,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
        kept: frozenset[int] = frozenset(),
    ) -> SequenceText:
        """A new sequence's text, to be fed what the engine sends for it. ``kept``: special tokens to be seen in it."""
        return SequenceText(OutputText(self.tokenizer, stop, include_stop, skip_special_tokens, kept))
