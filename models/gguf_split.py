"""The files of one GGUF model: a single file, or all shards of a split one (names of llama.cpp's gguf-split)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from .gguf import GgufFile
from .weight import CheckpointError

SHARD_NAME = re.compile(r"^(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")
MAX_SHARDS = 99999  # what the names can count


def open_gguf_files(path: Path) -> list[GgufFile]:
    """The model's files, the one with the metadata first. ``path``: a file, any shard of a split model, or a folder.

    Raises:
        CheckpointError: a file is missing or broken, the shards disagree, or a folder holds several models.
    """
    files = [GgufFile(pick_gguf(path) if path.is_dir() else path)]
    try:
        count = _split_value(files[0], "split.count", 1)
        if count > 1:
            _open_others(files, count)
            _check_total(files)
        return files
    except CheckpointError:
        for file in files:
            file.close()
        raise


def pick_gguf(folder: Path) -> Path:
    """The one model in ``folder``: its only GGUF file, or the first shard of its only split model."""
    names = sorted(p.name for p in folder.glob("*.gguf") if not p.name.startswith("mmproj"))
    models = sorted({match["stem"] if (match := SHARD_NAME.match(name)) else name for name in names})
    if len(models) == 1:
        return folder / names[0]
    if not models:
        raise CheckpointError(f"{folder}: no .gguf file and no config.json with safetensors files in this folder")
    shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    raise CheckpointError(f"{folder}: {len(models)} GGUF models in one folder ({shown}); name the file wanted")


def _open_others(files: list[GgufFile], count: int) -> None:
    """Open every other shard and put them in order."""
    first = files[0]
    match = SHARD_NAME.match(first.path.name)
    number = _split_value(first, "split.no", -1)
    if match is None or int(match["count"]) != count or int(match["number"]) != number + 1:
        raise CheckpointError(
            f"{first.path}: its metadata says it is shard {number + 1} of {count}; its name must end in "
            f"-{number + 1:05d}-of-{count:05d}.gguf for the other shards to be found"
        )
    for other in range(count):
        path = first.path.with_name(f"{match['stem']}-{other + 1:05d}-of-{count:05d}.gguf")
        if other == number:
            continue
        if not path.exists():
            raise CheckpointError(f"{path}: shard {other + 1} of {count} is missing")
        shard = GgufFile(path)
        files.append(shard)
        found = (_split_value(shard, "split.no", -1), _split_value(shard, "split.count", 1))
        if found != (other, count):
            raise CheckpointError(
                f"{path}: its metadata says split.no {found[0]} of split.count {found[1]}; wanted: {other} of {count}"
            )
    files.sort(key=lambda file: _split_value(file, "split.no", -1))


def _check_total(files: list[GgufFile]) -> None:
    """No tensor twice, and as many as every shard says there are."""
    home: dict[str, Path] = {}
    for file in files:
        for name in file.tensors:
            if name in home:
                raise CheckpointError(f"{file.path}: tensor {name} is also in {home[name].name}")
            home[name] = file.path
    for file in files:
        total = _split_value(file, "split.tensors.count", len(home))
        if total != len(home):
            raise CheckpointError(f"{file.path}: split.tensors.count is {total}, the shards hold {len(home)} tensors")


def _split_value(file: GgufFile, key: str, default: int) -> int:
    value: Any = file.metadata.get(key, default)
    most = MAX_SHARDS if key == "split.count" else 1 << 31
    if isinstance(value, bool) or not isinstance(value, int) or not min(default, 0) <= value <= most:
        raise CheckpointError(f"{file.path}: corrupt: {key} is {value!r}; wanted: an integer up to {most}")
    return value
