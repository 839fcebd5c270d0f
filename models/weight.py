"""One tensor of a checkpoint, still in the file's own encoding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..core.pooling import Pooling
from .config import ModelConfig

if TYPE_CHECKING:
    from .source import StoredTensor


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor, usually a view of a memory-mapped file.

    ``kind`` is "F32", "F16", "BF16" (``data`` typed ``shape``; BF16 as uint16), a GGML block type such as "Q4_1"
    (``data`` uint8 [rows, bytes per row]), "MLX" (affine: ``data`` uint32 [rows, words], with ``scales`` and
    ``biases`` float16 or float32 [rows, groups]; ``bits``, ``group_size``), "MLX_MXFP4", "MLX_MXFP8", "MLX_NVFP4"
    (the same with ``scales`` uint8 and no ``biases``; see ``mlx_float.py``), or "F8_E4M3" (``data`` uint8 ``shape``
    with float32 ``scales`` [rows, groups]; the last group may be short). AWQ, GPTQ and packed integers are "MLX" too.
    """

    name: str  # canonical: Hugging Face's, without "language_model." and the like
    shape: tuple[int, ...]  # logical; a matrix is (out, in)
    kind: str
    data: NDArray[Any]
    scales: NDArray[Any] | None = None
    biases: NDArray[Any] | None = None
    bits: int = 0
    group_size: int = 0
    order: NDArray[np.integer[Any]] | None = None  # [columns]: stored column j is column order[j]; None: in order

    @property
    def ordered(self) -> bool:
        """Whether the columns are stored in another order than the input's."""
        return self.order is not None

    def dequantize(self) -> NDArray[np.float32]:
        """The exact float32 values, shape ``shape``: bit for bit those of gguf-py (GGML types) or mlx (affine)."""
        from .dequant import dequantize  # the decoders are heavy tables; most callers never need them

        return dequantize(self)


class Checkpoint(Protocol):
    """An opened model: its shape, its tensors, its text side. Opening reads headers only."""

    path: str
    name: str  # for people
    config: ModelConfig
    quantization: str  # the file's own encoding, for people: "Q4_1", "BF16", "4-bit MLX"
    end_ids: frozenset[int]  # the union over config, generation config, tokenizer and GGUF keys
    generation_defaults: Mapping[str, Any]  # temperature, top_p, top_k, ... where the files name them
    weight_bytes: int  # of all tensors used, as stored
    tokenizer: TokenizerFiles
    pooling: Pooling | None  # how an embedding is made of hidden states; None: in a way that Bireme doesn't know

    def names(self) -> Iterator[str]:
        """Canonical names of the tensors present."""
        ...

    def weight(self, name: str) -> Weight:
        """Raises ``CheckpointError`` naming the tensor when it is missing or has the wrong shape."""
        ...

    def stored(self, name: str) -> StoredTensor:
        """What the headers say of a tensor that ``names`` gave; reads nothing."""
        ...

    def close(self) -> None: ...


class CheckpointError(ValueError):
    """The files can't be used; the message names the file, the tensor or key, what was found and what was wanted."""


Progress = Callable[[int, int], None]  # (bytes done, bytes in all)


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """What a checkpoint says of its tokenizer; see ``models/tokenizer.py``."""

    tokenizer_json: str | None = None  # path
    gguf_metadata: Mapping[str, Any] | None = None  # the tokenizer.* keys
    chat_template: str | None = None
    bos_token: str | None = None
    eos_token: str | None = None
    add_bos: bool | None = None  # None: as tokenizer.json says
    extra: Mapping[str, Any] = field(default_factory=dict)  # e.g. named templates
