"""The simulated backend: keeps hashes where a real one keeps K/V, and passes time on a virtual clock."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...core.step import PLACEHOLDER, RowInit, StepBatch, StepLogprobs, StepResult
from ..base import BackendInfo
from ..rows import unpack_masks
from .clock import VirtualClock
from .contents import draw, entry, hidden, score, weight, weights
from .contract import ContractError, check_batch

_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class SimOptions:
    """The machine and model simulated. Times in seconds: a step takes

        max(step_seconds, tokens * token_seconds) + pairs * pair_seconds

    that is, reading the weights once or computing, whichever is longer, and attention on top.
    """

    num_blocks: int = 64
    block_size: int = 16
    vocab_size: int = 257
    max_model_len: int = 4096
    end_ids: frozenset[int] = frozenset()
    max_in_flight: int = 2
    step_seconds: float = 0.01
    token_seconds: float = 0.0005
    pair_seconds: float = 1e-7
    nan_token: int | None = None  # a sequence whose prompt holds it gets NaN at its second token
    fail_at_step: int | None = None  # ``wait`` raises for this step


@dataclass(slots=True)
class _Row:
    init: RowInit
    tokens: list[int] = field(default_factory=list)  # prompt and all outputs, as the device knows them


class SimBackend:
    """A ``Backend``. Every batch is held to the contract and every token to what the row has seen before; see
    ``contents`` for how results depend on what the blocks really hold."""

    def __init__(self, options: SimOptions | None = None, clock: VirtualClock | None = None) -> None:
        self.options = options or SimOptions()
        self.clock = clock or VirtualClock()
        opts = self.options
        self.info = BackendInfo(
            device="sim",
            model_name="sim",
            quantization="none",
            vocab_size=opts.vocab_size,
            max_model_len=opts.max_model_len,
            end_ids=opts.end_ids,
            num_blocks=opts.num_blocks,
            block_size=opts.block_size,
            weight_bytes=0,
            kv_bytes_per_token=8,
            max_in_flight=opts.max_in_flight,
        )
        self.closed = False
        self.num_steps = 0
        self._entries = np.zeros((opts.num_blocks, opts.block_size), np.uint64)
        self._positions = np.full((opts.num_blocks, opts.block_size), -1, np.int32)
        self._rows: dict[int, _Row] = {}
        self._weights = weights(opts.max_model_len)
        self._order = np.arange(opts.max_model_len, dtype=np.int32)
        self._free_at = 0.0
        self._last_step = 0

    def submit(self, batch: StepBatch) -> SimTicket:
        """Check and compute the step; its result is due on the virtual clock."""
        opts = self.options
        check_batch(batch, opts.num_blocks, opts.block_size, opts.max_model_len)
        if batch.step_id <= self._last_step:
            raise ContractError(f"step {batch.step_id} after step {self._last_step}")
        self._last_step = batch.step_id
        self.num_steps += 1
        for source, target in batch.copies.tolist():
            self._entries[target] = self._entries[source]
            self._positions[target] = self._positions[source]
        for init in batch.new_rows:
            self._rows[init.row] = _Row(init, [*init.prompt_ids, *init.output_ids])
        result = self._run(batch)
        start = max(self.clock.now, self._free_at)
        self._free_at = start + result.elapsed
        return SimTicket(self, batch, result, self._free_at)

    def close(self) -> None:
        self.closed = True

    def seconds(self, tokens: int, pairs: int) -> float:
        """The time a step of this size takes."""
        opts = self.options
        return max(opts.step_seconds, tokens * opts.token_seconds) + pairs * opts.pair_seconds

    def _run(self, batch: StepBatch) -> StepResult:
        starts = batch.query_start.tolist()
        tokens: list[int] = []
        nan: list[bool] = []
        wanted: list[int | None] = []
        sums: list[NDArray[np.float32]] = []
        for s, (row, samples) in enumerate(zip(batch.rows.tolist(), batch.samples.tolist(), strict=True)):
            state = self._rows.get(row)
            if state is None:
                raise ContractError(f"row {row} was never introduced")
            context = self._read_and_store(batch, s, starts[s], starts[s + 1], state)
            if batch.pools is not None and batch.pools[s]:
                sums.append(self._pool(batch, starts[s + 1] - int(batch.pools[s]), starts[s + 1]))
            if not samples:
                continue
            mask = _mask_of(batch, len(tokens), self.options.vocab_size)
            token, bad = self._sample(context, state, int(batch.context_lens[s]), mask)
            tokens.append(token)
            nan.append(bad)
            wanted.append(state.init.params.logprobs)
        pairs = int(batch.positions.sum(dtype=np.int64)) + batch.num_tokens
        drawn = np.array(tokens, np.int32)
        return StepResult(
            batch.step_id,
            drawn,
            np.array(nan, np.bool_),
            _logprobs(drawn, wanted, self.options.vocab_size),
            self.seconds(batch.num_tokens, pairs),
            np.stack(sums) if sums else None,
            None if batch.targets is None else self._score(batch, batch.targets),
        )

    def _score(self, batch: StepBatch, targets: NDArray[np.int32]) -> StepLogprobs:
        """Made up of the stored entries of the tokens before: what attends to something else scores otherwise."""
        rows = np.flatnonzero(targets >= 0)
        blocks, offsets = np.divmod(batch.slots[rows], self.options.block_size)
        made = score(self._entries[blocks, offsets], targets[rows])
        ranks = np.arange(batch.num_top, dtype=np.int32)
        ids = (targets[rows][:, None] + ranks) % self.options.vocab_size
        return StepLogprobs(made, ids, made[:, None] - ranks.astype(np.float32))

    def _pool(self, batch: StepBatch, first: int, end: int) -> NDArray[np.float32]:
        """The sum of the hidden states that the stored entries of a step's tokens stand for."""
        blocks, offsets = np.divmod(batch.slots[first:end], self.options.block_size)
        found: NDArray[np.float32] = hidden(self._entries[blocks, offsets]).sum(0, dtype=np.float32)
        return found

    def _read_and_store(self, batch: StepBatch, s: int, first: int, end: int, state: _Row) -> int:
        """Attend to all the blocks hold, add this step's tokens one by one; returns the sum over the whole context."""
        size, start = self.options.block_size, int(batch.positions[first])
        blocks = batch.block_tables[s, : -(-start // size)]
        context = 0
        if start:
            stored = self._positions[blocks].reshape(-1)[:start]
            if not (stored == self._order[:start]).all():
                raise ContractError(f"sequence in row {batch.rows[s]}: its context of {start} tokens is not all stored")
            context = int((self._entries[blocks].reshape(-1)[:start] * self._weights[:start]).sum(dtype=np.uint64))
        slots = batch.slots[first:end].tolist()
        for slot, token, position in zip(slots, batch.token_ids[first:end].tolist(), range(start, 2**31), strict=False):
            token = self._known_token(token, position, state)
            block, offset = divmod(slot, size)
            value = entry(context, token, position)
            self._entries[block, offset] = value
            self._positions[block, offset] = position
            context = (context + weight(position) * value) & _MASK
        return context

    def _known_token(self, token: int, position: int, state: _Row) -> int:
        """The token meant; a placeholder only for the row's last, and no other than the row has had there."""
        known = state.tokens
        if position >= len(known) or (token == PLACEHOLDER and position != len(known) - 1):
            raise ContractError(f"row {state.init.row}: position {position} but {len(known)} tokens are known")
        if token not in (PLACEHOLDER, known[position]):
            raise ContractError(f"row {state.init.row}: token {token} at {position}, not {known[position]}")
        return known[position]

    def _sample(self, context: int, state: _Row, length: int, allowed: NDArray[np.bool_] | None) -> tuple[int, bool]:
        init, params = state.init, state.init.params
        if length != len(state.tokens):
            raise ContractError(f"row {init.row} samples after {length} tokens, {len(state.tokens)} are known")
        outputs = len(state.tokens) - len(init.prompt_ids)
        banned = frozenset(init.end_ids if outputs < params.min_tokens else ())
        if allowed is not None:  # all but a few of a real vocabulary, and as many draws until one of the few is found
            banned |= frozenset(np.flatnonzero(~allowed).tolist())
        token = draw(context, init.seed, params.temperature == 0, self.options.vocab_size, banned)
        state.tokens.append(token)
        return token, outputs == 1 and self.options.nan_token in init.prompt_ids


def _mask_of(batch: StepBatch, n: int, vocab_size: int) -> NDArray[np.bool_] | None:
    """What the step's ``n``-th sampled sequence may draw; None: anything."""
    if batch.masks is None:
        return None
    at = np.flatnonzero(batch.masks.index == n)
    return unpack_masks(batch.masks.bits[at], vocab_size)[0] if len(at) else None


class SimTicket:
    """A step under way. Waiting for it moves the virtual clock, and checks that its arrays were left alone."""

    def __init__(self, backend: SimBackend, batch: StepBatch, result: StepResult, due: float) -> None:
        self._backend = backend
        self._batch = batch
        self._result = result
        self._due = due
        self._digest = _digest(batch)

    def done(self) -> bool:
        return self._backend.clock.now >= self._due

    def wait(self) -> StepResult:
        if self._result.step_id == self._backend.options.fail_at_step:
            raise RuntimeError("the simulated device was lost")
        if _digest(self._batch) != self._digest:
            raise ContractError(f"step {self._result.step_id}: arrays were changed after submission")
        self._backend.clock.advance_to(self._due)
        return self._result


def _digest(batch: StepBatch) -> int:
    masks = b"" if batch.masks is None else batch.masks.bits.tobytes()
    arrays = (batch.token_ids, batch.slots, batch.block_tables, batch.rows)
    return hash((masks, *(array.tobytes() for array in arrays)))


def _logprobs(tokens: NDArray[np.int32], wanted: list[int | None], vocab_size: int) -> StepLogprobs | None:
    """Made-up but plausible: the drawn token first, its neighbours after it."""
    if all(k is None for k in wanted):
        return None
    width = max(k or 0 for k in wanted)
    ranks = np.arange(width, dtype=np.int32)
    top = -0.5 - np.broadcast_to(ranks, (len(tokens), width)).astype(np.float32)
    return StepLogprobs(np.full(len(tokens), -0.5, np.float32), (tokens[:, None] + ranks) % vocab_size, top)
