"""The tensors of a GGUF model under canonical names, rows in canonical order."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .config import MAX_MATRICES, ModelConfig
from .ggml_types import DECODABLE
from .gguf import GgufFile, GgufTensor
from .names import ROPE_DIVISORS, canonical_from_gguf, gguf_from_canonical, matrices_of, of_expert
from .source import StoredTensor
from .weight import CheckpointError, Weight

_QUERY_OR_KEY = re.compile(r"model\.layers\.\d+\.self_attn\.(?P<part>[qk])_proj\.(weight|bias)")


class GgufSource:
    """A ``TensorSource`` over the files of one model."""

    def __init__(self, files: Sequence[GgufFile]) -> None:
        self.path = str(files[0].path)
        self._files = files
        self._architecture = str(files[0].metadata.get("general.architecture"))
        self._home: dict[str, tuple[GgufFile, GgufTensor, int]] = {}  # and the first of its rows there
        self._interleaved: tuple[int, int] | None = None  # heads, kv heads
        self._stored: dict[str, StoredTensor] = {}
        self.tensors: Mapping[str, StoredTensor] = self._stored
        try:
            for file in files:
                for tensor in file.tensors.values():
                    if tensor.name != ROPE_DIVISORS:
                        self._add(file, tensor)
        except CheckpointError:
            self.close()
            raise

    def _add(self, file: GgufFile, tensor: GgufTensor) -> None:
        name = canonical_from_gguf(tensor.name, self._architecture) or f"gguf:{tensor.name}"
        kind = tensor.type.name
        problem = None
        if kind not in DECODABLE:
            problem = f"has type {kind}, which is not supported; supported: {', '.join(sorted(DECODABLE))}"
        if "*" not in name:
            stored = StoredTensor(tensor.name, tensor.shape, kind, tensor.nbytes, problem=problem)
            self._put(name, stored, (file, tensor, 0))
            return
        names = matrices_of(name)
        if len(tensor.shape) != 3 or tensor.shape[1] % len(names):
            problem = f"has shape {tensor.shape}; wanted: three dimensions, the experts' number first"
            self._put(name, StoredTensor(tensor.name, tensor.shape, kind, tensor.nbytes, problem=problem))
            return
        count, rows = tensor.shape[0] * len(names), tensor.shape[1] // len(names)
        stored = StoredTensor(tensor.name, (rows, tensor.shape[2]), kind, tensor.nbytes // count, problem=problem)
        for index in range(count):
            expert, part = divmod(index, len(names))
            self._put(of_expert(names[part], expert), stored, (file, tensor, index * rows))

    def _put(self, name: str, stored: StoredTensor, home: tuple[GgufFile, GgufTensor, int] | None = None) -> None:
        if name in self._stored:
            twice = f"{self._stored[name].file_name} and {stored.file_name}"
            raise CheckpointError(f"{self.path}: tensors {twice} are both {name}")
        if len(self._stored) == MAX_MATRICES:
            raise CheckpointError(
                f"{self.path}: corrupt: more than {MAX_MATRICES} matrices, at tensor {stored.file_name}"
            )
        self._stored[name] = stored
        if home is not None:
            self._home[name] = home

    def set_row_order(self, config: ModelConfig) -> None:
        """ "llama" files keep the rows of q and k in interleaved-pair order; ``load`` then puts them half-split."""
        if config.architecture == "llama":
            self._interleaved = (config.num_heads, config.num_kv_heads)

    def rope_divisors(self) -> NDArray[np.float32] | None:
        """The values of ``rope_freqs.weight``, if the model has it."""
        for file in self._files:
            tensor = file.tensors.get(ROPE_DIVISORS)
            if tensor is not None:
                if tensor.type.name not in ("F32", "F16"):
                    raise CheckpointError(f"{file.path}: tensor {tensor.name} has type {tensor.type.name}; wanted: F32")
                return np.array(file.data(tensor), np.float32)
        return None

    def load(self, name: str) -> Weight:
        file, tensor, first = self._home[name]
        data, shape = file.data(tensor), self._stored[name].shape
        if shape != tensor.shape:  # a part of it
            data = data.reshape(-1, data.shape[-1])[first : first + shape[0]]
        match = _QUERY_OR_KEY.fullmatch(name)
        if match is not None and self._interleaved is not None:
            data = half_split_rows(data, self._interleaved[0 if match["part"] == "q" else 1])
        return Weight(name, shape, tensor.type.name, data)

    def file_name(self, name: str) -> str:
        return gguf_from_canonical(name, self._architecture)

    def advise(self, done: bool) -> None:
        for file in self._files:
            if done:
                file.file.advise_done()
            else:
                file.file.advise_sequential()

    def close(self) -> None:
        for file in self._files:
            file.close()


def half_split_rows(data: NDArray[Any], heads: int) -> NDArray[Any]:
    """Rows of each head from the order 0, h/2, 1, h/2 + 1, ... (pairs side by side) to 0, 1, ..., h - 1. A copy."""
    half = data.shape[0] // heads // 2
    pairs = data.reshape(heads, half, 2, *data.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(data.shape)
