"""An engine over the simulated backend that holds every step to the design's rules and every token to an oracle."""

from __future__ import annotations

from dataclasses import dataclass, field

from bireme.backends.sim import SimBackend, SimOptions, VirtualClock, generate_alone
from bireme.core.config import EngineConfig
from bireme.core.engine import Engine
from bireme.core.grammar import Grammar
from bireme.core.plan import BuiltStep
from bireme.core.request import FinishReason, Request, SamplingParams, SequenceOutput
from bireme.core.sequence import Sequence
from bireme.core.stats import EngineStats

Key = tuple[str, int]


@dataclass
class Record:
    """What one sequence should give and has given."""

    expected: list[int]
    stop_ids: frozenset[int]
    limit: int
    prompt: tuple[int, ...]
    tokens: list[int] = field(default_factory=list)
    finish: FinishReason | None = None
    cached: int | None = None
    error: str | None = None
    arrivals: list[int] = field(default_factory=list)  # the step after which each token came


class Simulation:
    """Add, abort, step; ``finish`` runs to the end and compares everything."""

    def __init__(self, options: SimOptions | None = None, config: EngineConfig | None = None) -> None:
        self.options = options or SimOptions()
        self.clock = VirtualClock()
        self.backend = SimBackend(self.options, self.clock)
        self.engine = Engine(self.backend, config or EngineConfig(), self.clock, check_every_step=True)
        self.records: dict[Key, Record] = {}
        self.aborted: set[str] = set()
        self.num_steps = 0
        self._count = 0
        self._inner = self.engine.scheduler.schedule
        self.engine.scheduler.schedule = self._schedule  # type: ignore[method-assign]

    def add(
        self,
        prompt: tuple[int, ...] | list[int],
        params: SamplingParams | None = None,
        *,
        user: str = "",
        priority: int = 0,
        salt: str = "",
        weight: float | None = None,
        grammar: Grammar | None = None,
    ) -> str:
        """Queue a request and work out what it should give. Returns its id."""
        params = params or SamplingParams(max_tokens=8, temperature=0.0)
        request_id = f"r{self._count}"
        self._count += 1
        prompt = tuple(prompt)
        self.engine.add(Request(request_id, prompt, params, user, priority, salt, weight=weight), grammar)
        for seq in self.group(request_id):
            self.records[request_id, seq.index] = Record(self.expect(seq), seq.stop_ids, seq.limit, prompt)
        return request_id

    def expect(self, seq: Sequence) -> list[int]:
        params = seq.group.request.params
        return generate_alone(
            seq.group.request.prompt_ids,
            limit=seq.limit,
            seed=seq.seed,
            greedy=params.temperature == 0,
            vocab_size=self.options.vocab_size,
            stop_ids=seq.stop_ids,
            min_tokens=params.min_tokens,
        )

    def group(self, request_id: str) -> list[Sequence]:
        return self.engine._delivery.groups[request_id].seqs

    def abort(self, request_id: str, index: int | None = None) -> bool:
        found = self.engine.abort(request_id, index)
        if found:
            self.aborted.add(request_id)
        self.engine.check()
        return found

    def step(self) -> list[SequenceOutput]:
        """One engine step, its outputs recorded and its counters checked."""
        outputs = self.engine.step()
        self.num_steps += 1
        for output in outputs:
            self._record(output)
        self.check_stats()
        return outputs

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def drain(self, most: int = 100_000) -> None:
        """Step until there is nothing left; everything must have ended within ``most`` steps."""
        for _ in range(most):
            if not self.engine.has_work():
                return
            self.step()
        raise AssertionError(f"not done after {most} steps: {self.engine.stats()}")

    def finish(self) -> EngineStats:
        """Drain, then compare every output with the oracle, and look for leaks."""
        self.drain()
        for key, record in self.records.items():
            self._compare(key, record)
        stats = self.engine.stats()
        assert stats.running == stats.waiting == stats.kv_blocks_live == stats.in_flight == 0
        assert stats.kv_blocks_free + stats.kv_blocks_cached == self.options.num_blocks
        assert not stats.users
        assert sum(stats.finished.values()) == len(self.records)
        assert stats.tokens_generated == sum(len(record.tokens) for record in self.records.values())
        return stats

    def tokens(self, request_id: str, index: int = 0) -> list[int]:
        return self.records[request_id, index].tokens

    def check_stats(self) -> None:
        stats = self.engine.stats()
        assert stats.kv_blocks_live + stats.kv_blocks_cached + stats.kv_blocks_free == stats.kv_blocks_total
        assert stats.prompt_tokens_cached + stats.prompt_tokens_computed == stats.prompt_tokens
        assert stats.in_flight <= self.options.max_in_flight
        assert not stats.dead

    def _record(self, output: SequenceOutput) -> None:
        record = self.records[output.request_id, output.index]
        assert record.finish is None, f"{output} after the end"
        if not record.tokens:
            record.cached = output.cached_tokens
        else:
            assert output.cached_tokens is None
        record.tokens.extend(output.token_ids)
        record.arrivals.extend(self.num_steps for _ in output.token_ids)
        record.finish, record.error = output.finish_reason, output.error

    def _compare(self, key: Key, record: Record) -> None:
        assert record.finish is not None, f"{key} never ended"
        if record.finish is FinishReason.ABORT:
            assert key[0] in self.aborted
            assert record.tokens == record.expected[: len(record.tokens)], key
        elif record.finish is FinishReason.ERROR:
            assert self.options.nan_token in record.prompt and record.error
            assert record.tokens == record.expected[:1], key
        else:
            assert record.tokens == record.expected, key
            stopped = record.tokens[-1] in record.stop_ids
            assert record.finish is (FinishReason.STOP if stopped else FinishReason.LENGTH), key
        if record.cached is not None:
            assert 0 <= record.cached < len(record.prompt)

    def _schedule(self) -> BuiltStep | None:
        """The rules of the design's section 4 that one step can show."""
        scheduler = self.engine.scheduler
        decoding = [scheduler.rows.seqs[row] for row in scheduler.rows.decoding().tolist()]
        head = scheduler.queue.head()
        idle = not scheduler.rows.num_running and not self.engine._in_flight
        before = scheduler.counters.preemptions
        built = self._inner()
        if idle and head is not None and not head.waits_for_mask:
            assert built is not None and head.row >= 0, "nothing runs and the head of the queue does not either"
        for seq in decoding:
            assert seq is not None
            gave_way = seq.row < 0 or seq in scheduler.out_of_room or seq.limit <= scheduler.rows.tokens[seq.row]
            gathers = built is None and seq.constraint is not None and bool(self.engine._in_flight)
            assert gave_way or gathers or (built is not None and seq.row in built.rows), "a running stream was left out"
        if scheduler.counters.preemptions > before:
            assert built is None or not built.batch.new_rows, "a step that preempted admitted somebody"
        if built is not None:
            assert built.batch.num_tokens <= scheduler.config.max_num_batched_tokens
            assert built.batch.num_seqs <= scheduler.config.max_num_seqs
        return built


def give_way(sim: Simulation, seq: Sequence) -> None:
    """Take a running sequence's blocks away, as the scheduler does when there are none left."""
    scheduler = sim.engine.scheduler
    scheduler.kv.release(seq)
    seq.account.running -= 1
    seq.num_preemptions += 1
    scheduler.queue.push_preempted(seq)
    sim.engine.check()
