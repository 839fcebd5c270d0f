"""A rank's share of a checkpoint, as a checkpoint: whoever loads it need not know that there is more."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ....core.pooling import Pooling
from ....models.dequant import select_rows
from ....models.source import StoredTensor
from ....models.weight import Checkpoint, CheckpointError, TokenizerFiles, Weight
from .shares import COLUMNS, FIRST, Cut, Shares, grain_of
from .slices import cut_columns, divides

logger = logging.getLogger(__name__)

_FLOAT32 = 4  # bytes


class RankCheckpoint:
    """A ``Checkpoint`` (see ``models/weight.py``) of what rank ``rank`` holds of ``whole``.

    ``quantization``, tokenizer, pooling and end tokens are the whole model's; ``config``, tensors, sizes the share's.
    Matrices that can't be cut between their blocks are decoded, and the log says so.
    """

    def __init__(self, whole: Checkpoint, shares: Shares, rank: int) -> None:
        self.whole, self.rank = whole, rank
        self.path, self.name, self.quantization = whole.path, whole.name, whole.quantization
        self.config = shares.config_of(rank)
        self.end_ids: frozenset[int] = whole.end_ids
        self.generation_defaults: Mapping[str, Any] = whole.generation_defaults
        self.tokenizer: TokenizerFiles = whole.tokenizer
        self.pooling: Pooling | None = whole.pooling
        cuts = {name: shares.cut(name, rank) for name in whole.names()}
        self._cuts = {name: cut for name, cut in cuts.items() if rank == 0 or cut is None or cut.axis != FIRST}
        self._stored = {name: _part(whole.stored(name), cut) for name, cut in self._cuts.items()}
        self.weight_bytes = sum(stored.nbytes for stored in self._stored.values())
        self._report_decoded()

    def names(self) -> Iterator[str]:
        """Canonical names of the tensors of which this rank holds something."""
        return iter(self._cuts)

    def weight(self, name: str) -> Weight:
        """The rank's part of a tensor. CheckpointError as the whole one's, and for a tensor that is another rank's."""
        if name not in self._cuts:
            raise CheckpointError(f"{self.path}: rank {self.rank} holds nothing of tensor {name}")
        weight, cut = self.whole.weight(name), self._cuts[name]
        if cut is None or cut.axis == FIRST:
            return weight
        return cut_columns(weight, *cut.span) if cut.axis == COLUMNS else select_rows(weight, slice(*cut.span))

    def stored(self, name: str) -> StoredTensor:
        """What the headers say of the rank's part."""
        return self._stored[name]

    def close(self) -> None:
        self.whole.close()

    def _report_decoded(self) -> None:
        decoded = [name for name, stored in self._stored.items() if stored.kind != self.whole.stored(name).kind]
        if decoded and self.rank == 0:
            first, kind = decoded[0], self.whole.stored(decoded[0]).kind
            logger.warning(
                "%d matrices (%s, ...) are decoded: shares don't end where blocks of %s do", len(decoded), first, kind
            )


def _part(stored: StoredTensor, cut: Cut | None) -> StoredTensor:
    """``stored``'s part; its bytes are its share of the whole's."""
    if cut is None or cut.axis == FIRST:
        return stored
    start, stop = cut.span
    if cut.axis != COLUMNS:
        nbytes = stored.nbytes * (stop - start) // stored.shape[0]
        return dataclasses.replace(stored, shape=(stop - start, *stored.shape[1:]), nbytes=nbytes)
    rows, columns = stored.shape
    shape = rows, stop - start
    if not divides(grain_of(stored), start, stop, columns):
        nbytes = int(np.prod(shape)) * _FLOAT32
        return dataclasses.replace(stored, shape=shape, kind="F32", nbytes=nbytes, group_size=0, ordered=False)
    return dataclasses.replace(stored, shape=shape, nbytes=stored.nbytes * shape[1] // columns)
