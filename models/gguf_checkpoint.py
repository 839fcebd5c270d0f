"""Opening a GGUF model: configuration, tokenizer part, end ids and tensors from its own metadata."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.pooling import Pooling
from .checkpoint import OpenCheckpoint
from .end_ids import gguf_end_ids, token_ids
from .gguf_config import gguf_architecture, gguf_config
from .gguf_source import GgufSource
from .gguf_split import open_gguf_files
from .names import EMBEDDING, HEAD
from .settings import Settings
from .source import StoredTensor
from .weight import CheckpointError, TokenizerFiles

_SAMPLING = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}
_ROUTER = re.compile(r"model\.layers\.(\d+)\.mlp\.gate\.weight")
_TEMPLATE = "tokenizer.chat_template"


def open_gguf(path: Path) -> OpenCheckpoint:
    """Open a .gguf file, any shard of a split one, or a folder of shards. Reads headers only."""
    files = open_gguf_files(path)
    source = GgufSource(files)
    try:
        return _open(source, Settings(files[0].metadata, source.path))
    except CheckpointError:
        source.close()
        raise


def _open(source: GgufSource, metadata: Settings) -> OpenCheckpoint:
    gguf_architecture(metadata)
    embedding = source.tensors.get(EMBEDDING)
    if embedding is None:
        raise CheckpointError(f"{source.path}: missing tensor token_embd.weight")
    config = gguf_config(
        metadata,
        vocab_size=embedding.shape[0],
        tied=HEAD not in source.tensors,
        attention_bias=_has_bias(source.tensors) or metadata.get("general.architecture") == "qwen2",
        divisors=source.rope_divisors(),
        routed_layers=[int(match[1]) for match in map(_ROUTER.fullmatch, source.tensors) if match],
    )
    source.set_row_order(config)
    return OpenCheckpoint(
        source=source,
        name=metadata.text("general.name", "") or Path(source.path).stem,
        config=config,
        tokenizer=_tokenizer(metadata, config.vocab_size),
        end_ids=gguf_end_ids(metadata.values, source.path, config.vocab_size),
        generation_defaults=_generation_defaults(metadata),
        pooling=_pooling(metadata),
    )


def _has_bias(tensors: Mapping[str, StoredTensor]) -> bool:
    return any(name.endswith(("q_proj.bias", "k_proj.bias", "v_proj.bias")) for name in tensors)


def _tokenizer(metadata: Settings, vocab_size: int) -> TokenizerFiles:
    keys = {key: value for key, value in metadata.values.items() if key.startswith("tokenizer.")}
    tokens = keys.get("tokenizer.ggml.tokens", [])
    if not isinstance(tokens, list) or len(tokens) > vocab_size:
        raise CheckpointError(
            f"{metadata.source}: tokenizer.ggml.tokens has {len(tokens) if isinstance(tokens, list) else tokens!r} "
            f"entries, token_embd.weight has {vocab_size} rows"
        )
    named = {
        key.removeprefix(_TEMPLATE + "."): value
        for key, value in keys.items()
        if key.startswith(_TEMPLATE + ".") and isinstance(value, str)
    }
    return TokenizerFiles(
        gguf_metadata=keys,
        chat_template=metadata.text(_TEMPLATE, "") or None,
        bos_token=_token_text(metadata, "bos_token_id", tokens, vocab_size),
        eos_token=_token_text(metadata, "eos_token_id", tokens, vocab_size),
        add_bos=metadata.boolean("tokenizer.ggml.add_bos_token", False)
        if metadata.has("tokenizer.ggml.add_bos_token")
        else None,
        extra={"chat_templates": named} if named else {},
    )


def _token_text(metadata: Settings, key: str, tokens: list[Any], vocab_size: int) -> str | None:
    for token_id in token_ids(metadata.get(f"tokenizer.ggml.{key}"), key, metadata.source, vocab_size):
        return str(tokens[token_id]) if token_id < len(tokens) else None
    return None


def _pooling(metadata: Settings) -> Pooling | None:
    """The architecture's ``pooling_type``; a model that was not made for embeddings names none, and gets the mean."""
    kinds: dict[object, Pooling] = {None: "mean", 0: "mean", 1: "mean", 3: "last"}
    kind = metadata.get(f"{metadata.text('general.architecture')}.pooling_type")
    return None if isinstance(kind, list) else kinds.get(kind)


def _generation_defaults(metadata: Settings) -> dict[str, Any]:
    values = {name: metadata.get(f"general.sampling.{key}") for name, key in _SAMPLING.items()}
    return {k: v for k, v in values.items() if isinstance(v, int | float) and not isinstance(v, bool)}
