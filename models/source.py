"""What a checkpoint needs of a file format: a table of tensors under canonical names, and their data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from .weight import Weight


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as the files have it, known from headers alone."""

    file_name: str  # its name in the file, for messages
    shape: tuple[int, ...]  # logical
    kind: str  # as Weight.kind
    nbytes: int  # stored, scales and biases included
    bits: int = 0  # of MLX tensors
    problem: str | None = None  # why it can't be used, if so
    group_size: int = 0  # of MLX tensors
    scheme: str = ""  # who quantised it, for people, where the kind doesn't say
    ordered: bool = False  # its columns may come in another order (``Weight.order``)


class TensorSource(Protocol):
    """An opened file, or a set of them."""

    path: str
    tensors: Mapping[str, StoredTensor]  # by canonical name; what no decoder uses goes by its file name

    def load(self, name: str) -> Weight:
        """The tensor ``name`` of ``tensors``, as views of the mapped file where its order allows."""
        ...

    def file_name(self, name: str) -> str:
        """What a canonical name would be called in these files."""
        ...

    def advise(self, done: bool) -> None:
        """Tell the system that the data will soon be read from end to end, or, with ``done``, that it has been."""
        ...

    def close(self) -> None: ...
