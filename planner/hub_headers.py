"""A model's headers from the Hub without its weights: each weight file becomes a sparse file of its true size.

Only the beginning of each file is asked for (HTTP ranges); the ordinary readers then open what looks like the model.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from ..models.gguf import GgufFile
from ..models.hub import HubUnreachableError, Listing, Unreachable, from_hub_cache, list_files
from ..models.hub_choice import ModelChoiceError, choose
from ..models.weight import CheckpointError

if TYPE_CHECKING:
    import httpx

_FIRST = 4 << 20  # bytes of a GGUF file asked for at first: vocabularies take most of a header
_MOST = 256 << 20


def fetch_headers(model: str, folder: Path) -> Path:
    """Fetch what ``model`` (``org/name[:QUANT]``) says of itself into ``folder``; what the readers open.

    Without the Hub it is the model in the Hub client's own cache, if that is there.

    Raises:
        ValueError: the Hub doesn't know the model, or holds nothing that fits.
        HubUnreachableError: it can't be reached, and the model is not in the cache.
    """
    import httpx

    repo, _, quant = model.partition(":")
    try:
        listing = list_files(repo)
        chosen = choose(repo, listing.sizes, quant or None)
        _fetch_all(repo, listing, _needed(chosen.files), folder)
    except Unreachable as error:
        return from_hub_cache(repo, quant or None, str(error))
    except ModelChoiceError as error:
        raise ValueError(str(error)) from None
    except httpx.HTTPError as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise HubUnreachableError(f"{repo}: its headers can't be had from the Hub: {reason}") from None
    main = folder / chosen.main
    return main if chosen.gguf else main.parent


def _fetch_all(repo: str, listing: Listing, names: list[str], folder: Path) -> None:
    import httpx
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils._headers import build_hf_headers

    endpoint = os.environ.get("HF_ENDPOINT")
    with httpx.Client(headers=build_hf_headers(), follow_redirects=True, timeout=60) as client:
        for name in names:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            url = hf_hub_url(repo, name, revision=listing.commit, endpoint=endpoint)
            _fetch(client, url, target, listing.sizes[name])


def _needed(files: tuple[str, ...]) -> list[str]:
    side = ("config.json", "model.safetensors.index.json")
    return [name for name in files if name in side or name.endswith((".gguf", ".safetensors"))]


def _fetch(client: httpx.Client, url: str, target: Path, size: int) -> None:
    if target.suffix == ".json":
        target.write_bytes(_range(client, url, 0, size))
    elif target.suffix == ".safetensors":
        head = _range(client, url, 0, 8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
        if not 0 < length <= min(size, _MOST):
            raise ValueError(f"{target.name} is no safetensors file: its header would be {length} bytes long")
        _write_sparse(target, head + _range(client, url, 8, length), size)
    else:
        _fetch_gguf(client, url, target, size)


def _fetch_gguf(client: httpx.Client, url: str, target: Path, size: int) -> None:
    """More and more of the beginning, until the header is whole."""
    data = b""
    while True:
        want = min(size, max(_FIRST, 2 * len(data)))
        data += _range(client, url, len(data), want - len(data))
        _write_sparse(target, data, size)
        try:
            GgufFile(target).close()
            return
        except CheckpointError:  # zeros stand where the header goes on
            if len(data) >= min(size, _MOST):
                raise


def _range(client: httpx.Client, url: str, start: int, count: int) -> bytes:
    answer = client.get(url, headers={"Range": f"bytes={start}-{start + count - 1}"})
    answer.raise_for_status()
    content = answer.content
    return content if answer.status_code == 206 else content[start : start + count]


def _write_sparse(target: Path, data: bytes, size: int) -> None:
    with target.open("wb") as file:
        file.write(data)
        file.truncate(max(size, len(data)))
