"""The text side of a Hugging Face folder: tokenizer files, templates, end ids, sampling defaults."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.pooling import Pooling
from .end_ids import token_ids
from .weight import CheckpointError, TokenizerFiles

_DEFAULTS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


def read_json(path: Path) -> dict[str, Any]:
    """The object in ``path``; {} where there is no such file.

    Raises:
        CheckpointError: the file is no JSON object.
    """
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: a JSON object is wanted, this is {type(value).__name__}")
    return value


def hf_tokenizer(folder: Path) -> TokenizerFiles:
    """What the folder's files say of the tokenizer. A chat_template.jinja wins over templates inside JSON files."""
    settings = read_json(folder / "tokenizer_config.json")
    special = read_json(folder / "special_tokens_map.json")
    templates = _templates(folder, settings)
    main = templates.pop("default", None)
    add_bos = settings.get("add_bos_token")
    path = folder / "tokenizer.json"
    return TokenizerFiles(
        tokenizer_json=str(path) if path.exists() else None,
        chat_template=main,
        bos_token=_content(settings.get("bos_token")) or _content(special.get("bos_token")),
        eos_token=_content(settings.get("eos_token")) or _content(special.get("eos_token")),
        add_bos=add_bos if isinstance(add_bos, bool) else None,
        extra={"chat_templates": templates} if templates else {},
    )


def _templates(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Templates by name; the one used by itself is "default"."""
    found: dict[str, str] = {}
    for given in (settings.get("chat_template"), read_json(folder / "chat_template.json").get("chat_template")):
        if isinstance(given, str):
            found["default"] = given
        for item in given if isinstance(given, list) else []:
            if isinstance(item, dict) and isinstance(item.get("name"), str) and isinstance(item.get("template"), str):
                found[item["name"]] = item["template"]
    paths = {"default": folder / "chat_template.jinja"}
    paths |= {path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    return found | {name: _read_text(path) for name, path in paths.items() if path.exists()}


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: can't be read as UTF-8 text: {error}") from error


def _content(token: Any) -> str | None:
    """A special token's text: a string, or an object that holds it."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def hf_end_ids(folder: Path, configs: list[Mapping[str, Any]], vocab_size: int) -> frozenset[int]:
    """The union of the end ids in ``configs`` (config.json, its text part), generation_config.json, the tokenizer's
    configuration and its special tokens map.

    Raises:
        CheckpointError: an id outside the vocabulary.
    """
    generation = read_json(folder / "generation_config.json")
    ids: set[int] = set()
    for values, name in [*((values, "config.json") for values in configs), (generation, "generation_config.json")]:
        ids |= token_ids(values.get("eos_token_id"), "eos_token_id", str(folder / name), vocab_size)
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        text = _content(read_json(folder / name).get("eos_token"))
        found = None if text is None else _token_id(folder, text)
        ids |= token_ids(found, f"eos_token {text}", str(folder / name), vocab_size)
    return frozenset(ids)


def _token_id(folder: Path, text: str) -> int | None:
    """The id of a token by its text. The vocabulary, which is large, is read only if the added tokens lack it."""
    added = read_json(folder / "tokenizer_config.json").get("added_tokens_decoder")
    for key, token in added.items() if isinstance(added, dict) else ():
        if _content(token) == text and key.isdecimal():
            return int(key)
    tokenizer = read_json(folder / "tokenizer.json")
    tokens = tokenizer.get("added_tokens")
    for token in tokens if isinstance(tokens, list) else ():
        if isinstance(token, dict) and _content(token) == text and isinstance(token.get("id"), int):
            return int(token["id"])
    model = tokenizer.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    found = vocabulary.get(text) if isinstance(vocabulary, dict) else None
    return found if isinstance(found, int) else None


def hf_generation_defaults(folder: Path) -> dict[str, Any]:
    """Sampling settings that generation_config.json names, of those a request can have."""
    values = read_json(folder / "generation_config.json")
    return {
        name: values[name]
        for name in _DEFAULTS
        if isinstance(values.get(name), int | float)
        and not isinstance(values[name], bool)
        and math.isfinite(values[name])
    }


def hf_pooling(folder: Path) -> Pooling | None:
    """What sentence-transformers' 1_Pooling/config.json says; a folder without one gets the mean."""
    values = read_json(folder / "1_Pooling" / "config.json")
    modes = {name for name, on in values.items() if name.startswith("pooling_mode_") and on is True}
    known: dict[frozenset[str], Pooling] = {
        frozenset(): "mean",
        frozenset({"pooling_mode_mean_tokens"}): "mean",
        frozenset({"pooling_mode_lasttoken"}): "last",
    }
    return known.get(frozenset(modes))
