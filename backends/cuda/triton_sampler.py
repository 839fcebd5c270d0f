"""The sampler of a GPU: as ``sampler.py`` defines it, by kernels, from parameters that lie on the device by row."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from ...core.step import RowInit, StepMasks
from .kernels import sampler as kernels
from .sampler import Logprobs, Sampled, Sampler

#: Tokens with a bias, and end tokens, that a row has room for at first; more make room for twice as many in all rows.
FEW_PAIRS = 64


@dataclass(frozen=True, slots=True)
class Launch:
    """What is compiled in. A captured graph may be replayed for a step of the same launch, and for no other."""

    plain: bool  # every row wants the argmax of its logits as they are
    penalties: bool  # some row may have penalties
    pairs: int  # room for tokens with a bias, a row


class TritonSampler(Sampler):
    """Rows keep their parameters and counts on the device, so that a draw needs nothing from the host but who is drawn.

    Weights may differ from the reference's in their last bits, for the GPU's exponential does; the rest is exact.
    """

    def __init__(self, rows: int, vocab_size: int, device: torch.device) -> None:
        super().__init__(rows, vocab_size, device)
        words = torch.zeros((rows, kernels.WORDS), dtype=torch.int64, device=device)
        words[:, kernels.FLAGS] = kernels.GREEDY  # of a row that no sequence has begun in, which may pad a step
        floats = torch.ones((rows, kernels.FLOATS), dtype=torch.float32, device=device)
        floats[:, kernels.PRESENCE :] = 0
        self.device_rows = kernels.Rows(words, floats, *self._room(FEW_PAIRS), seen=None)

    def begin(self, init: RowInit) -> None:
        table, row = self.table, init.row
        table.set(init)
        words = np.zeros(kernels.WORDS, np.int64)
        words[kernels.SEED] = table.seed[row].astype(np.int64)  # the same 64 bits
        words[kernels.TOP_K], words[kernels.TOP_P] = table.top_k[row], table.top_p[row]
        words[kernels.MIN_WEIGHT], words[kernels.MIN_TOKENS] = table.min_weight[row], table.min_tokens[row]
        words[kernels.MADE] = table.made[row]
        words[kernels.FLAGS] = kernels.GREEDY * table.greedy[row] | kernels.PENALISED * table.penalised[row]
        words[kernels.PAIRS] = self._begin_pairs(row)
        floats = (table.temperature[row], table.repetition[row], table.presence[row], table.frequency[row])
        self.device_rows.words[row] = self._put(words)
        self.device_rows.floats[row] = self._put(np.array(floats, np.float32))
        if table.penalised[row]:
            self._begin_counts(init)

    def _begin_pairs(self, row: int) -> int:
        """Send the row's biases and end tokens in the order of their ids; how many there are."""
        one = np.array([row])
        (_, ids, values), (_, ends, _) = self.table.biases.pairs(one), self.table.ends.pairs(one)
        ids, values = np.concatenate((ids, ends)), np.concatenate((values, np.full(len(ends), -np.inf, np.float32)))
        order, held = np.argsort(ids, kind="stable"), self.device_rows
        if len(ids) > held.pair_ids.shape[1]:
            old_ids, old_values = held.pair_ids, held.pair_values
            held.pair_ids, held.pair_values = self._room(1 << (len(ids) - 1).bit_length())
            held.pair_ids[:, : old_ids.shape[1]], held.pair_values[:, : old_ids.shape[1]] = old_ids, old_values
        if len(ids):
            held.pair_ids[row, : len(ids)] = self._put(ids[order].astype(np.int32))
            held.pair_values[row, : len(ids)] = self._put(values[order])
        return len(ids)

    def _begin_counts(self, init: RowInit) -> None:
        held, shape = self.device_rows, (self.table.rows, self.table.vocab_size)
        if held.seen is None:
            held.seen = torch.zeros(shape, dtype=torch.int32, device=self.device)
        row = held.seen[init.row].zero_()
        row.index_fill_(0, self._put(np.array(init.prompt_ids, np.int64)), 1)
        output = self._put(np.array(init.output_ids, np.int64))
        row.index_add_(0, output, torch.full((len(output),), 2, dtype=torch.int32, device=self.device))

    def _room(self, pairs: int) -> tuple[torch.Tensor, torch.Tensor]:
        shape = (self.table.rows, pairs)
        ids = torch.zeros(shape, dtype=torch.int32, device=self.device)
        return ids, torch.zeros(shape, dtype=torch.float32, device=self.device)

    def launch(self, rows: NDArray[np.int32]) -> Launch:
        """How a step that samples for ``rows`` is drawn."""
        return Launch(self.table.plain(rows), self.device_rows.seen is not None, self.device_rows.pair_ids.shape[1])

    def draw(
        self,
        logits: torch.Tensor,
        rows: torch.Tensor,
        positions: torch.Tensor,
        last_tokens: torch.Tensor,
        launch: Launch,
        masks: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens int64 [N] and NaN flags int8 [N]; ``kernels.sampler.sample`` says what the arguments are.

        Can be captured. ``count`` must be called for each replay.
        """
        return kernels.sample(logits, rows, positions, self.device_rows, last_tokens, masks, launch.plain)

    def count(self, rows: NDArray[np.int32]) -> None:
        """Note on the host that a token was drawn for each of ``rows``."""
        self.table.made[rows] += 1

    def logprobs(self, logits: torch.Tensor, rows: NDArray[np.int32], tokens: torch.Tensor) -> Logprobs | None:
        """Of the rows that ask; None where none does. Not part of a graph: who asks changes from step to step."""
        wanted = self.table.logprobs[rows]
        asked = np.flatnonzero(wanted >= 0)
        if not len(asked):
            return None
        raw = logits[self._put(asked)].float().log_softmax(-1)
        return self._logprobs(raw, tokens, asked, int(wanted.max()))

    def sample(
        self,
        logits: torch.Tensor,
        rows: NDArray[np.int32],
        positions: NDArray[np.int64],
        masks: StepMasks | None = None,
    ) -> Sampled:
        """As ``Sampler.sample``; the logits stay as they are."""
        launch, last = self.launch(rows), torch.empty(self.table.rows, dtype=torch.int64, device=self.device)
        sent = None
        if masks is not None:
            launch, places = replace(launch, plain=False), np.full(len(rows), -1, np.int32)
            places[masks.index] = np.arange(len(masks.index))
            sent = self._put(masks.bits), self._put(places)
        on_device = self._put(rows.astype(np.int64))
        tokens, nan = self.draw(logits, on_device, self._put(positions), last, launch, sent)
        self.count(rows)
        return Sampled(tokens, nan.bool(), self.logprobs(logits, rows, tokens))
