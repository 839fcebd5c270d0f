"""Whether the disk has room for what is to be fetched from the Hub: known before the first byte, not after the last."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path


class NoRoomError(OSError):
    """The disk is too small; the message has the numbers and the folder."""


def check_room(repo: str, sizes: Mapping[str, int], commit: str | None) -> None:
    """``sizes``: bytes by file of ``repo``. What is in the cache already, whole or in part, isn't needed again.

    Raises:
        NoRoomError: the rest doesn't fit.
    """
    from huggingface_hub import constants, try_to_load_from_cache

    folder = Path(constants.HF_HUB_CACHE)
    there = {name for name in sizes if isinstance(try_to_load_from_cache(repo, name, revision=commit), str)}
    begun = (folder / f"models--{repo.replace('/', '--')}" / "blobs").glob("*.incomplete")
    wanted = sum(size for name, size in sizes.items() if name not in there) - sum(one.stat().st_size for one in begun)
    free = free_disk(folder)
    if wanted > free:
        raise NoRoomError(
            f"{repo} takes {wanted / 1e9:.1f} GB more, and {folder} has {free / 1e9:.1f} GB free. Make room "
            "('bireme models' lists what is there, 'bireme models rm NAME' removes it), choose a smaller file "
            f"('{repo}:QUANT'), or set HF_HUB_CACHE to a folder on a larger disk"
        )


def free_disk(folder: Path) -> int:
    """Bytes free where ``folder`` is, or would be made."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    return shutil.disk_usage(there).free
