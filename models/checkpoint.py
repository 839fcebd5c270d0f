"""``open_checkpoint``: a model's files, checked against its own configuration before anything is computed."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..core.pooling import Pooling
from .config import ModelConfig
from .ggml_types import DENSE
from .mlx_float import MODE_OF
from .names import HEAD, expected_shapes, optional_shapes
from .source import StoredTensor, TensorSource
from .weight import CheckpointError, TokenizerFiles, Weight

logger = logging.getLogger(__name__)

_DECODER_PART = re.compile(r"(model\.layers\.(?P<layer>\d+)\..*|lm_head|model\.norm)(\.bias|norm\.weight)")


class OpenCheckpoint:
    """A ``Checkpoint`` (see ``weight.py``) over the tensors of either file format."""

    def __init__(
        self,
        source: TensorSource,
        name: str,
        config: ModelConfig,
        tokenizer: TokenizerFiles,
        end_ids: frozenset[int],
        generation_defaults: Mapping[str, Any],
        pooling: Pooling | None = "mean",
    ) -> None:
        self.path = source.path
        self.name = name
        self.config = config
        self.tokenizer = tokenizer
        self.end_ids = end_ids
        self.generation_defaults = generation_defaults
        self.pooling = pooling
        self._source = source
        self._used = _check_tensors(source, config)
        self.weight_bytes = sum(tensor.nbytes for tensor in self._used.values())
        self.quantization = _label(self._used)

    def names(self) -> Iterator[str]:
        """Canonical names of the tensors the model uses. A tied head is not among them."""
        return iter(self._used)

    def weight(self, name: str) -> Weight:
        """The tensor, as views of the mapped file (q and k of "llama" GGUF files: copies, rows in canonical order)."""
        if name not in self._used:
            raise CheckpointError(f"{self.path}: missing tensor {self._source.file_name(name)}")
        return self._source.load(name)

    def stored(self, name: str) -> StoredTensor:
        """What the headers say of a tensor that ``names`` gave; reads nothing."""
        return self._used[name]

    def advise_sequential(self) -> None:
        """Tell the system that all weights will soon be read."""
        self._source.advise(done=False)

    def advise_done(self) -> None:
        """Tell the system that the weights have been copied: their cached pages may go."""
        self._source.advise(done=True)

    def close(self) -> None:
        """Unmap the files, as soon as no array looks at them any more. Safe to call twice."""
        self._source.close()


def open_checkpoint(path: str | Path) -> OpenCheckpoint:
    """Open a .gguf file (any shard of a split one, a folder of shards) or a folder with config.json and safetensors.

    Reads headers only; every tensor the configuration asks for is checked to be there in the right shape.

    Raises:
        CheckpointError: no model there, files missing, broken or unsupported; the message names what and where.
    """
    from .gguf_checkpoint import open_gguf  # both formats build on this module
    from .hf_checkpoint import open_folder

    place = Path(path).expanduser()
    if not place.exists():
        raise CheckpointError(f"{place}: no such file or folder")
    if place.is_file() and place.suffix in (".safetensors", ".json"):
        raise CheckpointError(f"{place}: one file of a safetensors model; name its folder, {place.parent}")
    if place.is_dir() and (place / "config.json").exists():
        if any(place.glob("*.safetensors")) or not any(place.glob("*.gguf")):
            return open_folder(place)
    return open_gguf(place)


def _check_tensors(source: TensorSource, config: ModelConfig) -> dict[str, StoredTensor]:
    """The tensors the model uses; missing and misshapen ones are errors, leftover ones a warning."""
    shapes = expected_shapes(config)
    shapes |= {name: shape for name, shape in optional_shapes(config).items() if name in source.tensors}
    missing = [source.file_name(name) for name in shapes if name not in source.tensors]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CheckpointError(f"{source.path}: missing tensor {missing[0]}{more}")
    for name, shape in shapes.items():
        tensor = source.tensors[name]
        if tensor.shape != shape:
            raise CheckpointError(
                f"{source.path}: tensor {tensor.file_name} has shape {tensor.shape}, expected {shape}"
            )
        if tensor.problem is not None:
            raise CheckpointError(f"{source.path}: tensor {tensor.file_name} {tensor.problem}")
    _report_leftovers(source, config, set(source.tensors) - set(shapes))
    return {name: source.tensors[name] for name in shapes}


def _report_leftovers(source: TensorSource, config: ModelConfig, names: set[str]) -> None:
    """A bias or norm of the decoder's own that nothing would apply means wrong results; other tensors a warning."""
    if config.tie_embeddings:
        names.discard(HEAD)  # the configuration ties; a copy of the head in the file is usual
    left = sorted(names)
    for name in left:
        match = _DECODER_PART.fullmatch(name)
        if match is not None and int(match["layer"] or 0) < config.num_layers:
            raise CheckpointError(
                f"{source.path}: tensor {source.tensors[name].file_name} is not applied by a {config.architecture} "
                "decoder here; without it the results would be wrong"
            )
    if left:
        shown = ", ".join(source.tensors[name].file_name for name in left[:5])
        more = f" and {len(left) - 5} more" if len(left) > 5 else ""
        logger.warning("%s: ignored, not part of a %s decoder: %s%s", source.path, config.architecture, shown, more)


def _label(tensors: Mapping[str, StoredTensor]) -> str:
    """The encoding of most weights, and others that hold a tenth of the bytes or more: "Q4_K + Q6_K"."""
    sizes: Counter[str] = Counter()
    for tensor in tensors.values():
        kind = MODE_OF.get(tensor.kind, tensor.kind)
        sizes[f"{tensor.bits}-bit {tensor.scheme or 'MLX'}" if kind == "MLX" else kind] += tensor.nbytes
    total = sum(sizes.values())
    kinds = [kind for kind, size in sizes.most_common() if size * 10 >= total]
    blocks = [kind for kind in kinds if kind not in DENSE]
    return " + ".join(blocks or kinds[:1])
