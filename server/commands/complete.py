"""What shells complete: models that are on this machine, and paths."""

from __future__ import annotations

import glob
import os


def complete_model(incomplete: str) -> list[str]:
    """Names that ``incomplete`` may become: models in the caches, ``demo``, GGUF files and folders."""
    names = sorted({"demo", *complete_stored("")})
    return list(dict.fromkeys([*(name for name in names if name.startswith(incomplete)), *_paths(incomplete)]))


def _paths(incomplete: str) -> list[str]:
    """Folders, with a slash, and GGUF files."""
    found = sorted(glob.glob(glob.escape(os.path.expanduser(incomplete)) + "*"))
    folders = [f"{path}/" for path in found if os.path.isdir(path)]
    return [*folders, *(path for path in found if path.lower().endswith(".gguf") and os.path.isfile(path))]


def complete_stored(incomplete: str) -> list[str]:
    """Names of models in the caches."""
    from ...models.stored import stored_names

    return [name for name in sorted(stored_names()) if name.startswith(incomplete)]
