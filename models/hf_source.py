"""The tensors of a safetensors folder under canonical names; the tensors of a quantised module are one weight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .config import MAX_MATRICES, ModelConfig
from .gemma import ARCHITECTURE
from .ggml_types import DENSE
from .names import canonical_from_hf, matrices_of, of_expert
from .safetensors import SafeTensor, SafetensorsFile, open_safetensors
from .scheme import Module, Scheme
from .source import StoredTensor
from .weight import CheckpointError, Weight

_IGNORED = (".rotary_emb.inv_freq", ".masked_bias")  # tables that old programs saved


class SafetensorsSource:
    """A ``TensorSource`` over a folder.

    Args:
        scheme: how config.json says that modules are quantised.
        nested: a model with vision or audio, of which only the language model's tensors count.
    """

    def __init__(self, folder: Path, scheme: Scheme, nested: bool) -> None:
        self.path = str(folder)
        self._found = open_safetensors(folder)
        self._scheme = scheme
        self._nested = nested
        self._names: dict[str, str] = {}  # canonical -> the file's
        self._dense: dict[str, SafeTensor] = {}  # those that are no module's, by canonical name
        self._modules: dict[str, Module] = {}  # the quantised ones, by canonical name
        self._stored: dict[str, StoredTensor] = {}
        self._norms_from_one = False
        self.tensors: Mapping[str, StoredTensor] = self._stored
        try:
            for stem, parts in self._by_stem().items():
                self._add_module(stem, parts)
        except CheckpointError:
            self.close()
            raise

    def _by_stem(self) -> dict[str, dict[str, SafeTensor]]:
        """Tensors by name without the last part, and by last part; each expert's part of a tensor of all its own."""
        modules: dict[str, dict[str, SafeTensor]] = {}
        for name, (_, tensor) in self._found.items():
            if name.endswith(_IGNORED):
                continue
            for one, part in self._matrices(name, tensor):
                stem, _, last = one.rpartition(".")
                parts = modules.setdefault(stem, {})
                if last in parts:
                    raise CheckpointError(f"{self.path}: tensors {parts[last].name} and {name} are both {one}")
                parts[last] = part
                if len(modules) > MAX_MATRICES:
                    raise CheckpointError(f"{self.path}: corrupt: more than {MAX_MATRICES} matrices, at tensor {name}")
        return modules

    def _matrices(self, name: str, tensor: SafeTensor) -> Iterator[tuple[str, SafeTensor]]:
        """The tensor under its own name; or the parts of one that holds all experts', under their canonical names."""
        known = canonical_from_hf(name)
        if "*" not in known:
            yield name, tensor
            return
        names, (count, *shape) = matrices_of(known), tensor.shape or (0,)
        if len(names) > 1 and (not shape or shape[0] % len(names)):
            raise CheckpointError(
                f"{self.path}: tensor {name} has shape {tensor.shape}; it can't be gate and up halves"
            )
        shape[:1] = [size // len(names) for size in shape[:1]]
        nbytes = tensor.nbytes // max(1, count * len(names))
        for index in range(count * len(names)):
            one = of_expert(names[index % len(names)], index // len(names))
            yield one, replace(tensor, shape=tuple(shape), offset=tensor.offset + index * nbytes, nbytes=nbytes)

    def _add_module(self, stem: str, parts: dict[str, SafeTensor]) -> None:
        quantised = self._scheme.holds(parts)
        if quantised:
            weight = f"{stem}.weight"
            name = canonical_from_hf(weight)
            if self._counts(name):
                module = Module(self.path, stem, name, parts, self._data)
                self._add(name, self._scheme.stored(module))
                self._modules[name] = module
        for part, tensor in parts.items():
            name = canonical_from_hf(f"{stem}.{part}" if stem else part)
            if not (quantised and part in self._scheme.parts) and self._counts(name):
                problem = None if tensor.dtype in DENSE else f"has type {tensor.dtype}; supported: {', '.join(DENSE)}"
                self._add(name, StoredTensor(tensor.name, tensor.shape, tensor.dtype, tensor.nbytes, problem=problem))
                self._dense[name] = tensor

    def _counts(self, name: str) -> bool:
        """Whether a tensor of this canonical name may be the language model's."""
        language = ("model.layers.", "model.embed_tokens.", "model.norm.", "lm_head.")
        return not self._nested or name.startswith(language)

    def _add(self, name: str, stored: StoredTensor) -> None:
        if name in self._names:
            raise CheckpointError(f"{self.path}: tensors {self._names[name]} and {stored.file_name} are both {name}")
        self._names[name] = stored.file_name
        self._stored[name] = stored

    def set_norms(self, config: ModelConfig) -> None:
        """Gemma's files hold what is to be added to 1: ``load`` then gives the norms' weights themselves, float32."""
        self._norms_from_one = config.architecture == ARCHITECTURE

    def load(self, name: str) -> Weight:
        weight = self._load(name)
        if self._norms_from_one and name.endswith("norm.weight"):
            return Weight(name, weight.shape, "F32", weight.dequantize() + np.float32(1))
        return weight

    def _load(self, name: str) -> Weight:
        stored = self.tensors[name]
        if name in self._modules:
            return self._scheme.load(self._modules[name], stored)
        return Weight(name, stored.shape, stored.kind, self._data(self._dense[name]))

    def _data(self, tensor: SafeTensor) -> NDArray[Any]:
        return self._found[tensor.name][0].data(tensor)

    def file_name(self, name: str) -> str:
        return self._names.get(name, name)

    def _files(self) -> set[SafetensorsFile]:
        return {file for file, _ in self._found.values()}

    def advise(self, done: bool) -> None:
        for file in self._files():
            if done:
                file.file.advise_done()
            else:
                file.file.advise_sequential()

    def close(self) -> None:
        for file in self._files():
            file.close()
