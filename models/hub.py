"""From what a user types to files on disk: a path, a Hub id (``org/name``, ``org/name:Q4_K_M``), or ``demo``."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .hub_choice import ModelChoiceError, Selection, choose, missing_shards
from .hub_room import check_room

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .weight import Progress

_HUB_ID = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+?)(?::(?P<quant>[\w.-]+))?")
_INDEX = "model.safetensors.index.json"


class ModelNotFoundError(ValueError):
    """What was named is no model that can be had; the message says why and what to do."""


class HubUnreachableError(OSError):
    """What was named is not here, or not all of it, and the Hub can't be asked: nothing need be wrong with the name."""


def resolve(model: str, progress: Progress | None = None) -> Path:
    """The path of ``model``: a ``.gguf`` file or a folder that ``open_checkpoint`` takes, downloaded where needed.

    ``progress`` gets (bytes done, bytes in all) over all files; without it the Hub client's own bars show.

    Raises:
        ModelNotFoundError: no such path; the Hub doesn't know it or refuses it; no file in it fits.
        HubUnreachableError: it is not here whole, and the Hub can't be reached.
        DemoModelError: the demo model can't be fetched.
        NoRoomError: the disk has no room for it.
    """
    if model == "demo":
        from .demo import demo_model

        return demo_model(progress)
    path = Path(model).expanduser()
    if path.exists():
        return _checked(path)
    found = _HUB_ID.fullmatch(model)
    if not found or model.startswith((".", "~", "/")) or (found["quant"] is None and model.lower().endswith(".gguf")):
        raise ModelNotFoundError(
            f"{model!r} is no file or folder here (looked for {path.absolute()}), and no Hub id, "
            "which looks like 'org/name' or 'org/name:Q4_K_M'"
        )
    return _from_hub(found["repo"], found["quant"], progress)


def _checked(path: Path) -> Path:
    if path.is_dir():
        if any(path.glob("*.gguf")) or (path / "config.json").is_file():
            return path
        raise ModelNotFoundError(f"{path} holds neither a .gguf file nor a config.json with safetensors")
    if path.suffix.lower() != ".gguf":
        raise ModelNotFoundError(f"{path} is not a .gguf file; for a safetensors model name its folder")
    return path


@dataclass(frozen=True, slots=True)
class Listing:
    """A repository's files: name to bytes (0 where not known), and the commit they belong to."""

    sizes: Mapping[str, int]
    commit: str | None


def _from_hub(repo: str, quant: str | None, progress: Progress | None) -> Path:
    try:
        listing = list_files(repo)
    except Unreachable as error:
        return from_hub_cache(repo, quant, str(error))
    try:
        selection = choose(repo, listing.sizes, quant)
    except ModelChoiceError as error:
        raise ModelNotFoundError(str(error)) from None
    names = list(selection.files)
    if _INDEX in names:  # the index is the only list: a repository may hold the same weights twice
        index = Path(_fetch(repo, _INDEX, listing.commit, None))
        names = _indexed(names, index)
    check_room(repo, {name: listing.sizes[name] for name in names}, listing.commit)
    total = sum(listing.sizes[name] for name in names)
    done = 0
    paths = {}
    for name in names:
        bar = _bar_for(progress, done, total) if progress else None
        paths[name] = Path(_fetch(repo, name, listing.commit, bar))
        done += listing.sizes[name]
        if progress:
            progress(done, total)
    return _entry(selection, paths)


def _entry(selection: Selection, paths: Mapping[str, Path]) -> Path:
    """What ``open_checkpoint`` takes: the first GGUF file, or the folder of the safetensors model."""
    return paths[selection.main] if selection.gguf else paths[selection.main].parent


def _indexed(names: Iterable[str], index: Path) -> list[str]:
    """``names`` less the safetensors files that the index doesn't name."""
    wanted = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    return [name for name in names if not name.endswith(".safetensors") or name in wanted]


class Unreachable(Exception):
    """The Hub can't be asked: no network, offline mode, or it has too much to do."""


@contextmanager
def explained(repo: str) -> Iterator[None]:
    """Turn the Hub client's errors into ours: ``Unreachable``, or ``ModelNotFoundError`` with what to do."""
    from huggingface_hub import errors

    # The HTTP library's own base class is the second base of the Hub's: naming it here would tie us to one client.
    network: tuple[type[BaseException], ...] = (OSError, errors.EntryNotFoundError, *errors.HfHubHTTPError.__bases__)
    page = f"https://huggingface.co/{repo}"
    try:
        yield
    except errors.GatedRepoError:
        hint = f"accept its terms at {page} and set HF_TOKEN to a token of that account"
        raise ModelNotFoundError(f"{repo} is a gated model: {hint}") from None
    except errors.RepositoryNotFoundError:
        hint = "check the spelling; if it is private, set HF_TOKEN to a token that may read it"
        raise ModelNotFoundError(f"the Hub has no model {repo!r} that you may see: {hint}") from None
    except errors.LocalEntryNotFoundError as error:
        raise Unreachable(_first_line(error)) from None
    except errors.HfHubHTTPError as error:
        if error.response.status_code >= 500 or error.response.status_code == 429:  # it is there, and not for us now
            raise Unreachable(_first_line(error)) from None
        raise ModelNotFoundError(f"the Hub refused {repo!r}: {_first_line(error)}") from None
    except errors.EntryNotFoundError as error:
        raise ModelNotFoundError(f"a file of {repo!r} is gone from the Hub: {_first_line(error)}") from None
    except network as error:
        raise Unreachable(_first_line(error)) from None


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def list_files(repo: str) -> Listing:
    """What the Hub says of ``repo``. Raises ``Unreachable``, or ``ModelNotFoundError``."""
    from huggingface_hub import HfApi

    with explained(repo):
        info = HfApi(endpoint=os.environ.get("HF_ENDPOINT")).model_info(repo, files_metadata=True, timeout=20)
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    return Listing(sizes, info.sha)


def _fetch(repo: str, name: str, commit: str | None, bar: type[Any] | None) -> str:
    from huggingface_hub import hf_hub_download

    try:
        with explained(repo):
            return str(
                hf_hub_download(
                    repo, name, revision=commit, tqdm_class=bar, endpoint=os.environ.get("HF_ENDPOINT"), etag_timeout=20
                )
            )
    except Unreachable as error:
        raise HubUnreachableError(
            f"the connection to the Hub was lost while fetching {name} of {repo}: {error}. "
            "Run the same command again: what is already here will not be fetched twice"
        ) from None


def _bar_for(progress: Progress, before: int, total: int) -> type[Any]:
    """A progress-bar class for the Hub client that draws nothing and reports to ``progress``."""
    from tqdm import tqdm

    class Reporter(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("name", None)
            super().__init__(*args, **kwargs | {"disable": True})
            self.seen = int(kwargs.get("initial") or 0)

        def update(self, n: float | None = 1) -> bool | None:
            self.seen += int(n or 0)
            progress(min(before + self.seen, total), total)
            return None

    return Reporter


def from_hub_cache(repo: str, quant: str | None, reason: str) -> Path:
    """The model out of the Hub client's own cache, if it is whole there, else ``HubUnreachableError``."""
    folder = cached_snapshot(repo)
    advice = (
        f"the Hub can't be reached ({reason}). Connect this machine, or fetch the model on another one with "
        f"'hf download {repo}' and name the folder or the .gguf file by its path"
    )
    if folder is None:
        raise HubUnreachableError(f"{repo} is not in the local cache, and {advice}")
    files = {str(path.relative_to(folder)): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}
    try:
        selection = choose(repo, files, quant)
    except ModelChoiceError as error:
        raise HubUnreachableError(f"{error} (these are the files in the local cache); {advice}") from None
    if missing := missing_files(folder, selection.files):
        raise HubUnreachableError(f"{repo} is in the local cache without {', '.join(missing)}, and {advice}")
    return _entry(selection, {name: folder / name for name in selection.files})


def missing_files(folder: Path, files: Iterable[str]) -> list[str]:
    """What a model of these ``files`` in ``folder`` lacks: shards, or files that its safetensors index names."""
    present = set(files)
    if _INDEX not in present:
        return missing_shards(present)
    index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
    return sorted(set(index["weight_map"].values()) - present)


def cached_snapshot(repo: str) -> Path | None:
    """The folder of the commit that was last downloaded of ``main``, or None."""
    from huggingface_hub import constants

    base = Path(constants.HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}"
    reference = base / "refs" / "main"
    if reference.is_file():
        snapshot = base / "snapshots" / reference.read_text(encoding="utf-8").strip()
        if snapshot.is_dir():
            return snapshot
    snapshots = sorted((base / "snapshots").glob("*"), key=lambda path: path.stat().st_mtime)
    return snapshots[-1] if snapshots else None
