"""Which of a repository's files make the model that was asked for. Names only; nothing is read or fetched."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

#: Taken in this order when a repository offers several GGUF files and none was named.
PREFERRED = ("Q4_K_M", "Q8_0", "Q5_K_M", "Q6_K", "Q4_K_S", "Q4_0", "Q4_1", "BF16", "F16", "F32")

_SHARD = re.compile(r"-(\d{5})-of-(\d{5})(?=\.(?:gguf|safetensors)$)", re.IGNORECASE)
_NOT_A_MODEL = re.compile(r"(?:^|[-_.])(?:mmproj|imatrix|mtp|draft)(?:[-_.]|$)", re.IGNORECASE)
_SIDE_FILES = re.compile(r"[^/]+\.(?:json|jinja)|tokenizer\.model|merges\.txt|additional_chat_templates/[^/]+\.jinja")


class ModelChoiceError(ValueError):
    """No file, or no single one, is what was asked for; the message lists what there is."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The files of one model, ``main`` among them: the first GGUF file, or config.json."""

    files: tuple[str, ...]
    main: str
    gguf: bool


def choose(repo: str, sizes: Mapping[str, int], quant: str | None) -> Selection:
    """The files of ``repo`` (name to bytes) to use. Safetensors come first unless ``quant`` names a GGUF file.

    Raises:
        ModelChoiceError: nothing fits, or several do and none is the obvious one.
    """
    groups = _gguf_groups(sizes)
    if quant is None:
        weights = _safetensors(sizes)
        if weights and "config.json" in sizes:
            side = [name for name in sizes if _SIDE_FILES.fullmatch(name)]
            return Selection(tuple(sorted({*side, *weights})), "config.json", gguf=False)
        if not groups:
            raise ModelChoiceError(
                f"{repo} has neither safetensors with a config.json nor GGUF files; it has: {_listed(sizes)}"
            )
        name = _sensible(repo, groups)
    else:
        name = _named(repo, groups, quant)
    files = tuple(groups[name])
    return Selection(files, files[0], gguf=True)


def offers(repo: str, sizes: Mapping[str, int]) -> dict[str, Selection]:
    """Every model among a repository's files, by what names it: ``org/name`` for safetensors, else ``org/name:QUANT``.

    The shortest end of a file's name that means it alone is its QUANT.
    """
    found: dict[str, Selection] = {}
    if _safetensors(sizes) and "config.json" in sizes:
        found[repo] = choose(repo, sizes, None)
    for group, files in _gguf_groups(sizes).items():
        ends = [group[cut.end() :] for cut in re.finditer(r"[-./]", group)][::-1]
        quant = next((end for end in ends if _means(repo, sizes, end, files)), group)
        found[f"{repo}:{quant}"] = Selection(tuple(files), files[0], gguf=True)
    return found


def _means(repo: str, sizes: Mapping[str, int], quant: str, files: list[str]) -> bool:
    try:
        return list(choose(repo, sizes, quant).files) == files
    except ModelChoiceError:
        return False


def missing_shards(files: Iterable[str]) -> list[str]:
    """Names of the shards that split files among ``files`` lack."""
    present = set(files)
    missing: set[str] = set()
    for name in present:
        found = _SHARD.search(name)
        if found:
            count = int(found[2])
            wanted = {
                f"{name[: found.start()]}-{i:05d}-of-{count:05d}{name[found.end() :]}" for i in range(1, count + 1)
            }
            missing |= wanted - present
    return sorted(missing)


def _gguf_groups(sizes: Iterable[str]) -> dict[str, list[str]]:
    """GGUF models by name without shard number and ending; each with its files, first shard first."""
    groups: dict[str, list[str]] = {}
    for name in sorted(sizes):
        if name.lower().endswith(".gguf") and not _NOT_A_MODEL.search(PurePosixPath(name).stem):
            groups.setdefault(_SHARD.sub("", name)[: -len(".gguf")], []).append(name)
    return groups


def _safetensors(sizes: Iterable[str]) -> list[str]:
    """Safetensors at the top of the repository that may hold the model's weights, index or not."""
    top = [name for name in sizes if "/" not in name and name.endswith(".safetensors")]
    model = [name for name in top if name.startswith("model")]
    return model or [name for name in top if not name.startswith(("consolidated", "adapter"))]


def _named(repo: str, groups: Mapping[str, list[str]], quant: str) -> str:
    wanted = quant.removesuffix(".gguf").casefold()
    for pattern in (rf"(?:.*/)?{re.escape(wanted)}", rf"(?:.*[-._/])?{re.escape(wanted)}"):
        hits = [name for name in groups if re.fullmatch(pattern, name.casefold())]
        plain = [name for name in hits if "-ud-" not in name.casefold()] if len(hits) > 1 else hits
        if len(plain) == 1:
            return plain[0]
        if hits:
            raise ModelChoiceError(f"{repo} has several GGUF files for {quant!r}: {_listed(hits)}; name one in full")
    raise ModelChoiceError(f"{repo} has no GGUF file for {quant!r}; it has: {_listed(groups) or 'no GGUF file at all'}")


def _sensible(repo: str, groups: Mapping[str, list[str]]) -> str:
    if len(groups) == 1:
        return next(iter(groups))
    for quant in PREFERRED:
        try:
            return _named(repo, groups, quant)
        except ModelChoiceError:
            continue
    raise ModelChoiceError(f"{repo} has several GGUF files; name one as '{repo}:NAME'. It has: {_listed(groups)}")


def _listed(names: Iterable[str], limit: int = 30) -> str:
    every = sorted(names)
    more = f" and {len(every) - limit} more" if len(every) > limit else ""
    return ", ".join(every[:limit]) + more
