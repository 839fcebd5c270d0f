"""Hypothesis drives the engine: add, abort and step in any order; every rule is checked after every step."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from simulation import Simulation

from bireme.backends.sim import SimOptions
from bireme.core.config import EngineConfig
from bireme.core.request import FinishReason, QueueFullError, RequestRejectedError, SamplingParams
from bireme.core.slo import Slo

PROMPTS = st.lists(st.integers(5, 7), min_size=1, max_size=30)
PARAMS = st.builds(
    SamplingParams,
    max_tokens=st.one_of(st.none(), st.integers(1, 25)),
    min_tokens=st.integers(0, 3),
    temperature=st.sampled_from([0.0, 1.0]),
    seed=st.one_of(st.none(), st.integers(0, 3)),
    n=st.integers(1, 3),
    ignore_eos=st.booleans(),
)


class EngineMachine(RuleBasedStateMachine):
    @initialize(
        blocks=st.integers(3, 24),
        size=st.sampled_from([1, 2, 4, 16]),
        rows=st.integers(1, 5),
        extra=st.integers(0, 40),
        depth=st.sampled_from([1, 2]),
        caching=st.booleans(),
        stall=st.sampled_from([0.5, 20.0, 1e6]),
        slo=st.sampled_from([None, Slo(ttft=0.03), Slo(ttft=0.2, tpot=0.011), Slo(tpot=0.03)]),
        policy=st.sampled_from(["queue", "refuse"]),
    )
    def start(
        self,
        blocks: int,
        size: int,
        rows: int,
        extra: int,
        depth: int,
        caching: bool,
        stall: float,
        slo: Slo | None,
        policy: str,
    ) -> None:
        options = SimOptions(
            num_blocks=blocks,
            block_size=size,
            vocab_size=24,
            max_model_len=64,
            end_ids=frozenset({1}),
            max_in_flight=depth,
            nan_token=4,
        )
        config = EngineConfig(
            block_size=size,
            max_num_seqs=rows,
            max_num_batched_tokens=rows + extra,
            max_stall_ms=stall,
            max_queue=6,
            slo=slo,
            slo_policy=policy,
            enable_prefix_caching=caching,
        )
        self.simulation = Simulation(options, config)
        self.ids: list[str] = []

    @rule(
        prompt=PROMPTS,
        params=PARAMS,
        user=st.sampled_from("ab"),
        priority=st.integers(-1, 1),
        salt=st.sampled_from(["", "x"]),
    )
    def add(self, prompt: list[int], params: SamplingParams, user: str, priority: int, salt: str) -> None:
        try:
            self.ids.append(self.simulation.add(prompt, params, user=user, priority=priority, salt=salt))
        except RequestRejectedError as error:
            assert len(prompt) + 1 > min(64, self.simulation.engine.limits.pool_tokens), error
        except QueueFullError as error:
            full = self.simulation.engine.scheduler.num_unstarted == 6
            assert (full or error.code == "slo_unattainable") and error.retry_after > 0

    @rule(prompt=PROMPTS, at=st.integers(0, 30))
    def add_poisonous(self, prompt: list[int], at: int) -> None:
        self.add([*prompt[:at], 4, *prompt[at:]], SamplingParams(max_tokens=9, temperature=0.0), "a", 0, "")

    @precondition(lambda self: self.ids)
    @rule(which=st.integers(0, 100))
    def abort(self, which: int) -> None:
        request_id = self.ids[which % len(self.ids)]
        alive = request_id in self.simulation.engine._delivery.groups
        assert self.simulation.abort(request_id) == alive

    @rule(count=st.integers(1, 12))
    def step(self, count: int) -> None:
        self.simulation.run(count)

    def teardown(self) -> None:
        if not hasattr(self, "simulation"):
            return
        stats = self.simulation.finish()
        assert stats.finished[FinishReason.ABORT] == sum(
            key[0] in self.simulation.aborted for key in self.ended_early()
        )

    def ended_early(self) -> list[tuple[str, int]]:
        return [k for k, record in self.simulation.records.items() if record.finish is FinishReason.ABORT]


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
