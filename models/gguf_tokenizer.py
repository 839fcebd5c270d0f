"""A ``tokenizers`` tokenizer out of the ``tokenizer.*`` keys of a GGUF file.

Two vocabularies are read: ``gpt2`` (byte-level BPE; the cutting rule is named by ``tokenizer.ggml.pre``) and ``llama``
(SentencePiece BPE: the pair whose joined token has the highest score is merged first; bytes stand in for characters
that have no token). Others are refused by name.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any

from .byte_level import to_bytes
from .pretokenizers import DEFAULT, PRE_TOKENIZERS, PreTokenizer
from .vocabulary import ControlToken, SpacePrefix, Vocabulary
from .weight import CheckpointError

WORD_MARK = "▁"  # SentencePiece's stand-in for a space


class TokenType(IntEnum):
    """Values of ``tokenizer.ggml.token_type``."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def read_gguf_tokenizer(metadata: Mapping[str, Any]) -> Vocabulary:
    """Raises ``CheckpointError`` naming the key that is missing, malformed or not known."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind == "gpt2":
        return _byte_level(metadata)
    if kind == "llama":
        return _sentencepiece(metadata)
    raise CheckpointError(
        f"tokenizer.ggml.model is {kind!r}; Bireme reads 'gpt2' (byte-level BPE) and 'llama' (SentencePiece). "
        "Convert the model again, or use its folder with tokenizer.json"
    )


def _byte_level(metadata: Mapping[str, Any]) -> Vocabulary:
    from tokenizers import Tokenizer, decoders, models, normalizers

    rule = _pre_tokenizer(metadata.get("tokenizer.ggml.pre"))
    texts, types = _texts(metadata), _types(metadata)
    merges = _merges(metadata)
    try:
        model = models.BPE(
            {text: index for index, text in enumerate(texts)}, merges, fuse_unk=False, ignore_merges=rule.ignore_merges
        )
    except Exception as error:  # the library raises bare Exception for a merge of unknown tokens
        raise CheckpointError(f"tokenizer.ggml.merges doesn't fit tokenizer.ggml.tokens: {error}") from error
    inner = Tokenizer(model)
    if rule.normalize_nfc:
        inner.normalizer = normalizers.NFC()
    inner.pre_tokenizer = rule.build()
    inner.decoder = decoders.ByteLevel()
    special = _special_ids(metadata, len(texts))
    control = _add_tokens(inner, texts, types, set(special.values()), normalized=False)
    literal = {TokenType.CONTROL, TokenType.USER_DEFINED}
    tokens = [
        text.encode("utf-8", "replace") if kind in literal else to_bytes(text)
        for text, kind in zip(texts, types, strict=True)
    ]
    prefix = _prefix(metadata, special, rule.add_bos)
    return Vocabulary(
        inner,
        tokens,
        control,
        special.get("bos"),
        special.get("eos"),
        prefix,
        _suffix(metadata, special),
        adds_bos_to_chat=bool(prefix),
    )


def _sentencepiece(metadata: Mapping[str, Any]) -> Vocabulary:
    from tokenizers import Tokenizer, models, normalizers

    texts, types = _texts(metadata), _types(metadata)
    scores = _items(metadata, "scores", float, int)
    if not all(map(math.isfinite, scores)):
        raise CheckpointError("tokenizer.ggml.scores holds values that are no numbers")
    if len(scores) != len(texts):
        raise CheckpointError(f"tokenizer.ggml.scores has {len(scores)} entries for {len(texts)} tokens")
    special = _special_ids(metadata, len(texts))
    unknown = _special_ids(metadata, len(texts), ("unknown",)).get("unknown", 0)
    model = models.BPE(
        {text: index for index, text in enumerate(texts)},
        _merges_by_score(texts, types, scores),
        unk_token=texts[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    inner = Tokenizer(model)
    inner.normalizer = normalizers.Replace(" ", WORD_MARK)
    control = _add_tokens(inner, texts, types, set(special.values()), normalized=True)
    tokens = [sentencepiece_bytes(text, kind == TokenType.BYTE) for text, kind in zip(texts, types, strict=True)]
    prefix = _prefix(metadata, special, True)
    spaced = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    return Vocabulary(
        inner,
        tokens,
        control,
        special.get("bos"),
        special.get("eos"),
        prefix,
        _suffix(metadata, special),
        space_prefix=SpacePrefix.ALWAYS if spaced else SpacePrefix.NONE,
        strips_first_space=spaced,
        adds_bos_to_chat=bool(prefix),
    )


def sentencepiece_bytes(text: str, is_byte: bool) -> bytes:
    """The bytes of a SentencePiece token: ``<0x0A>`` is one byte, a word mark is a space."""
    if is_byte:
        try:
            return bytes([int(text[3:5], 16)])
        except ValueError:
            raise CheckpointError(f"token {text!r} is marked as a byte; a byte's text is <0x00> to <0xFF>") from None
    return text.replace(WORD_MARK, " ").encode("utf-8", "replace")


def _merges_by_score(texts: Sequence[str], types: Sequence[int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every way to join two tokens into a third, best score first: BPE over these is SentencePiece's own order."""
    mergeable = {
        text: index for index, text in enumerate(texts) if types[index] in (TokenType.NORMAL, TokenType.UNUSED)
    }
    ranked: list[tuple[float, int, tuple[str, str]]] = []
    for text, index in mergeable.items():
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in mergeable and right in mergeable:
                ranked.append((-scores[index], -cut, (left, right)))
    ranked.sort(key=lambda entry: entry[:2])
    return [pair for _, _, pair in ranked]


def _pre_tokenizer(name: Any) -> PreTokenizer:
    if name is None or name == "default":
        said = "names no pre-tokenizer" if name is None else "names its pre-tokenizer 'default'"
        warnings.warn(
            f"the GGUF file {said} (tokenizer.ggml.pre): a generic rule cuts its text into words, and the quality of "
            "answers may suffer. A newer conversion of the model names the right rule",
            stacklevel=2,
        )
        return DEFAULT
    if not isinstance(name, str) or name not in PRE_TOKENIZERS:
        raise CheckpointError(
            f"tokenizer.ggml.pre is {name!r}, a pre-tokenizer Bireme does not know; a wrong one would garble every "
            f"prompt. Known: {', '.join(sorted(PRE_TOKENIZERS))}"
        )
    return PRE_TOKENIZERS[name]


def _items(metadata: Mapping[str, Any], name: str, *kinds: type) -> list[Any]:
    """The list under a key; [] where the file lacks it. All items of an array in a GGUF file have one type."""
    value = metadata.get(f"tokenizer.ggml.{name}", [])
    if not isinstance(value, list) or (value and type(value[0]) not in kinds):
        wanted = f"wanted: a list of {' or '.join(kind.__name__ for kind in kinds)}"
        raise CheckpointError(f"tokenizer.ggml.{name} is {str(value)[:60]!r}; {wanted}")
    return value


def _texts(metadata: Mapping[str, Any]) -> list[str]:
    texts = [text or f"[EMPTY_{index}]" for index, text in enumerate(_items(metadata, "tokens", str))]
    if not texts:
        raise CheckpointError("tokenizer.ggml.tokens is missing or empty: the file holds no vocabulary")
    if len(set(texts)) != len(texts):
        seen: set[str] = set()
        twice = next(text for text in texts if text in seen or seen.add(text))  # type: ignore[func-returns-value]
        raise CheckpointError(f"tokenizer.ggml.tokens holds {twice!r} twice; every token needs its own text")
    return texts


def _types(metadata: Mapping[str, Any]) -> list[int]:
    count = len(metadata["tokenizer.ggml.tokens"])
    types = _items(metadata, "token_type", int) or [int(TokenType.NORMAL)] * count
    if len(types) != count:
        raise CheckpointError(f"tokenizer.ggml.token_type has {len(types)} entries for {count} tokens")
    return types


def _merges(metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    def pairs() -> Iterator[tuple[str, str]]:
        for merge in _items(metadata, "merges", str):
            cut = merge.find(" ", 1)  # a token may itself begin with the separator
            if cut < 0:
                raise CheckpointError(
                    f"tokenizer.ggml.merges holds {merge!r}; an entry is two tokens with a space between"
                )
            yield merge[:cut], merge[cut + 1 :]

    return list(pairs())


def _special_ids(
    metadata: Mapping[str, Any], count: int, names: Sequence[str] = ("bos", "eos", "eot", "eom")
) -> dict[str, int]:
    found: dict[str, int] = {}
    for name in names:
        value = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < count:
            raise CheckpointError(f"tokenizer.ggml.{name}_token_id is {value!r}; the vocabulary has {count} tokens")
        found[name] = value
    return found


def _prefix(metadata: Mapping[str, Any], special: Mapping[str, int], default: bool) -> tuple[int, ...]:
    add_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", default))
    return (special["bos"],) if add_bos and "bos" in special else ()


def _suffix(metadata: Mapping[str, Any], special: Mapping[str, int]) -> tuple[int, ...]:
    return (special["eos"],) if metadata.get("tokenizer.ggml.add_eos_token") is True and "eos" in special else ()


def _add_tokens(
    inner: Any, texts: Sequence[str], types: Sequence[int], special: set[int], normalized: bool
) -> dict[str, ControlToken]:
    """Tell the library which tokens are found whole in text; returns the control tokens' literals."""
    from tokenizers import AddedToken

    control = {
        text: ControlToken(index)
        for index, (text, kind) in enumerate(zip(texts, types, strict=True))
        if kind in (TokenType.CONTROL, TokenType.UNKNOWN) or (index in special and kind != TokenType.BYTE)
    }
    inner.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in control])
    user = [
        text for text, kind in zip(texts, types, strict=True) if kind == TokenType.USER_DEFINED and text not in control
    ]
    inner.add_tokens([AddedToken(text, special=False, normalized=normalized) for text in user])
    inner.encode_special_tokens = True
    return control
