"""How the modules of a safetensors folder are stored: several tensors that together are one weight."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from .dequant import bf16_to_float32
from .safetensors import SafeTensor
from .source import StoredTensor
from .weight import CheckpointError, Weight


@dataclass(frozen=True, slots=True)
class Module:
    """Tensors whose names differ in the last part only: "X.weight", "X.scales", ..."""

    folder: str
    stem: str  # their name in the files without the last part
    name: str  # canonical, of the weight
    parts: Mapping[str, SafeTensor]  # by last part
    read: Callable[[SafeTensor], NDArray[Any]]

    def data(self, part: str) -> NDArray[Any]:
        """As stored; BF16 as uint16."""
        return self.read(self.parts[part])

    def floats(self, part: str) -> NDArray[np.floating[Any]]:
        """Floating-point numbers; BF16 ones widened to float32."""
        data = self.data(part)
        return bf16_to_float32(data) if self.parts[part].dtype == "BF16" else data

    def need(self, part: str, *dtypes: str) -> tuple[int, ...]:
        """The shape of a part that must be there, of one of ``dtypes``."""
        found = self.parts.get(part)
        if found is None:
            raise CheckpointError(f"{self.folder}: missing tensor {self.stem}.{part}")
        if found.dtype not in dtypes:
            self.fail(part, f"has type {found.dtype}; wanted: {' or '.join(dtypes)}")
        return found.shape

    def nbytes(self, *parts: str) -> int:
        """Stored bytes of those of ``parts`` that are there."""
        return sum(self.parts[part].nbytes for part in parts if part in self.parts)

    def fail(self, part: str, why: str) -> NoReturn:
        raise CheckpointError(f"{self.folder}: tensor {self.stem}.{part} {why}")


class Scheme(Protocol):
    """One way to store a quantised weight; it never applies to modules that were left dense."""

    weight: str  # the part that stands for the weight
    parts: frozenset[str]  # all parts that belong to it

    def holds(self, parts: Mapping[str, SafeTensor]) -> bool:
        """Whether a module with these tensors is quantised."""
        ...

    def stored(self, module: Module) -> StoredTensor:
        """Checks types and shapes, from headers alone. CheckpointError naming the tensor."""
        ...

    def load(self, module: Module, stored: StoredTensor) -> Weight: ...
