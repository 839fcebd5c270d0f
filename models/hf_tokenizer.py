"""A ``tokenizer.json`` file, read so that control tokens in text stay ordinary text to the library."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from .byte_level import to_bytes
from .gguf import MAX_ITEMS
from .gguf_tokenizer import WORD_MARK, sentencepiece_bytes
from .vocabulary import ControlToken, SpacePrefix, Vocabulary
from .weight import CheckpointError, TokenizerFiles

_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")


def read_tokenizer_json(files: TokenizerFiles) -> Vocabulary:
    """Raises ``CheckpointError`` naming the file when it can't be read."""
    from tokenizers import Tokenizer

    path = Path(str(files.tokenizer_json))
    try:
        inner = Tokenizer.from_file(str(path))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises bare Exception, and where it panics not even that
        raise CheckpointError(f"{path}: not a tokenizer the tokenizers library reads ({error})") from error
    inner.no_padding()
    inner.no_truncation()
    bos_id, eos_id = _id_of(inner, files.bos_token), _id_of(inner, files.eos_token)
    prefix, suffix = _affixes(inner, files.add_bos, bos_id)
    control = _control_tokens(inner, {bos_id, eos_id})
    inner.encode_special_tokens = True
    space_prefix = _take_over_space_prefix(inner)
    kind = _decoder_kind(inner)
    tokens = _token_bytes(inner, kind, path)
    return Vocabulary(
        inner,
        tokens,
        control,
        bos_id,
        eos_id,
        prefix,
        suffix,
        space_prefix=space_prefix,
        space_prefix_always_added=False,
        context_free=kind is not None,
        strips_first_space=kind == "sentencepiece" and _strips_first_space(inner),
    )


def _id_of(inner: Any, token: str | None) -> int | None:
    """None where the vocabulary lacks the token; the library can't even be asked for a lone surrogate."""
    asked = token and not any("\ud800" <= char <= "\udfff" for char in token)
    return inner.token_to_id(token) if asked else None


def _affixes(inner: Any, add_bos: bool | None, bos_id: int | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What the file's post-processor puts before and after a text."""
    plain, whole = inner.encode("a", add_special_tokens=False).ids, inner.encode("a").ids
    start = next((i for i in range(len(whole)) if whole[i : i + len(plain)] == plain), 0)
    prefix, suffix = tuple(whole[:start]), tuple(whole[start + len(plain) :])
    if add_bos is False:
        return (), suffix
    return (bos_id,) if add_bos and not prefix and bos_id is not None else prefix, suffix


def _control_tokens(inner: Any, ends: set[int | None]) -> dict[str, ControlToken]:
    from tokenizers import AddedToken

    added: dict[int, Any] = inner.get_added_tokens_decoder()
    control = {}
    for index, token in added.items():
        if token.special or index in ends:
            control[token.content] = ControlToken(index, token.lstrip, token.rstrip)
    for end in ends:
        if end is not None and end not in added:
            control[inner.id_to_token(end)] = ControlToken(end)
    inner.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in control])
    return control


def _state(part: Any) -> dict[str, Any]:
    return {} if part is None else dict(json.loads(part.__getstate__()))


def _members(state: dict[str, Any], key: str) -> list[dict[str, Any]]:
    return state[key] if state.get("type") == "Sequence" else [state]


def _take_over_space_prefix(inner: Any) -> SpacePrefix:
    """A "first" prefix is the caller's to add: the library sees pieces of a text and would count each as first."""
    from tokenizers import pre_tokenizers

    state = _state(inner.pre_tokenizer)
    if state.get("type") != "Metaspace" or state.get("prepend_scheme", "always") != "first":
        return SpacePrefix.NONE
    inner.pre_tokenizer = pre_tokenizers.Metaspace(state["replacement"], "never", state.get("split", True))
    return SpacePrefix.FIRST


def _decoder_kind(inner: Any) -> str | None:
    """How a token's bytes are written in the file; None where a token's text depends on its neighbours."""
    kinds = {member.get("type") for member in _members(_state(inner.decoder), "decoders")}
    if kinds == {"ByteLevel"}:
        return "byte_level"
    if kinds <= {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"} and kinds & {"Metaspace", "Replace"}:
        return "sentencepiece"
    return None


def _strips_first_space(inner: Any) -> bool:
    return str(inner.decoder.decode([WORD_MARK + "a"])) == "a"


def _token_bytes(inner: Any, kind: str | None, path: Path) -> list[bytes]:
    vocab: dict[str, int] = inner.get_vocab(with_added_tokens=True)
    last = max(vocab, key=vocab.__getitem__, default="")
    if vocab.get(last, 0) >= MAX_ITEMS:
        raise CheckpointError(f"{path}: token {last!r} has the id {vocab[last]}; ids below {MAX_ITEMS} are read")
    added = inner.get_added_tokens_decoder()
    tokens = [b""] * (max(vocab.values(), default=-1) + 1)
    for text, index in vocab.items():
        if index in added or kind is None:
            tokens[index] = text.encode("utf-8", "replace")
        elif kind == "byte_level":
            tokens[index] = to_bytes(text)
        else:
            tokens[index] = sentencepiece_bytes(text, _BYTE_TOKEN.fullmatch(text) is not None)
    return tokens
