"""The models that are on this machine's disk: in the Hub client's cache, in Bireme's own folder, in folders named."""

from __future__ import annotations

import glob
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .cache import cache_folder
from .demo import demo_model_path
from .hub import cached_snapshot, missing_files
from .hub_choice import Selection, offers

HUB, OWN, FOLDER = "hub", "bireme", "folder"
_REPO = "models--"


@dataclass(frozen=True, slots=True)
class StoredModel:
    """One model on disk."""

    name: str  # what ``resolve`` takes
    place: str  # HUB, OWN or FOLDER
    path: Path  # what ``open_checkpoint`` takes
    files: tuple[Path, ...]  # its weights, and of safetensors what stands beside them
    missing: tuple[str, ...] = ()  # files that belong to it and are not there

    @property
    def nbytes(self) -> int:
        return sum(file.stat().st_size for file in self.files)

    @property
    def last_used(self) -> float:
        """When a file of it was last read, in seconds since 1970, as exactly as the file system keeps that."""
        return max(file.stat().st_atime for file in self.files)

    def remove(self) -> int:
        """Delete it from its cache; returns the bytes that became free.

        Raises:
            ValueError: it lies in a folder of the user's own.
        """
        if self.place == FOLDER:
            raise ValueError(f"{self.path} lies in no cache; delete it by hand")
        freed = self.nbytes
        if self.place == OWN:
            for file in self.files:
                file.unlink()
        else:
            _remove_from_hub(self)
        return freed


def hub_folder() -> Path:
    """The Hub client's cache."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def stored_names() -> list[str]:
    """Names of what is in the caches, without a look into any file."""
    return [model.name for model in stored_models()]


def stored_models(folders: Iterable[Path] = ()) -> list[StoredModel]:
    """All that is found, by place and name. Raises ``ValueError`` for a folder that is none."""
    found = [*_in_hub(), *_in_own_folder()]
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"{folder} is no folder")
        found += _in_folder(folder)
    return found


def _in_hub() -> Iterator[StoredModel]:
    for folder in sorted(hub_folder().glob(f"{_REPO}*--*")):
        repo = folder.name.removeprefix(_REPO).replace("--", "/", 1)
        snapshot = cached_snapshot(repo)
        if snapshot is None:
            continue
        sizes = {str(path.relative_to(snapshot)): 0 for path in sorted(snapshot.rglob("*")) if path.is_file()}
        for name, chosen in offers(repo, sizes).items():
            files = tuple(snapshot / file for file in chosen.files)
            path = snapshot / chosen.main if chosen.gguf else snapshot
            yield StoredModel(name, HUB, path, files, _missing(snapshot, chosen))


def _missing(folder: Path, chosen: Selection) -> tuple[str, ...]:
    try:
        return tuple(missing_files(folder, chosen.files))
    except (ValueError, LookupError, AttributeError, TypeError, OSError):  # one broken file must not hide the others
        return ("a list of its files that can be read",)


def _in_own_folder() -> Iterator[StoredModel]:
    demo = demo_model_path()
    for path in sorted((cache_folder() / "models").glob("*.gguf")):
        yield StoredModel("demo" if path == demo else str(path), OWN, path, (path,))


def _in_folder(folder: Path) -> Iterator[StoredModel]:
    """GGUF models and safetensors folders anywhere below ``folder``."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    for place in sorted({path.parent for path in paths}):
        sizes = {path.name: 0 for path in paths if path.parent == place}
        for chosen in offers("a/b", sizes).values():
            path = place / chosen.main if chosen.gguf else place
            files = tuple(place / file for file in chosen.files)
            yield StoredModel(str(path), FOLDER, path, files, _missing(place, chosen))


def _remove_from_hub(model: StoredModel) -> None:
    """Its files, in every commit that is kept; the whole repository's folder once no other model is left in it."""
    repo = model.name.partition(":")[0]
    others = [one for one in _in_hub() if one.name.partition(":")[0] == repo and one.name != model.name]
    base = hub_folder() / f"{_REPO}{repo.replace('/', '--')}"
    if not others:
        shutil.rmtree(base)
        return
    snapshots = base / "snapshots"
    kept = {file for other in others for file in other.files}
    blobs = set()
    for file in set(model.files) - kept:
        inside = Path(*file.relative_to(snapshots).parts[1:])  # the same file, in every commit
        for link in snapshots.glob(f"*/{glob.escape(str(inside))}"):
            blobs.add(link.resolve())
            link.unlink()
    for blob in blobs - {link.resolve() for link in snapshots.rglob("*")}:
        blob.unlink(missing_ok=True)
