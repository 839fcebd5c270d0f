"""What steps tell of the prompts they read, embeddings and scores, whatever else runs and gives way."""

from __future__ import annotations

import numpy as np
import pytest
from oracles import pooled_alone, scores_of
from simulation import Simulation, give_way

from bireme.backends.sim import SimOptions
from bireme.core.config import EngineConfig
from bireme.core.pooling import Pooling
from bireme.core.request import SamplingParams


def params(pooling: Pooling) -> SamplingParams:
    return SamplingParams(max_tokens=1, temperature=0.0, pooling=pooling)


class Pooled(Simulation):
    """Keeps the embeddings that come out."""

    def __init__(self, options: SimOptions, config: EngineConfig) -> None:
        super().__init__(options, config)
        self.embeddings: dict[str, np.ndarray] = {}
        self.scores: dict[str, list[float]] = {}

    def step(self) -> list:  # type: ignore[type-arg]
        outputs = super().step()
        for output in outputs:
            if output.prompt_logprobs is not None:
                assert output.token_ids and output.request_id not in self.scores
                self.scores[output.request_id] = [one.logprob for one in output.prompt_logprobs]
                assert all(len(one.top_ids) == 2 for one in output.prompt_logprobs)
            if output.embedding is not None:
                assert output.finish_reason is not None and output.request_id not in self.embeddings
                self.embeddings[output.request_id] = np.frombuffer(output.embedding, "<f4")
        return outputs


@pytest.mark.parametrize("in_flight", [1, 2])
def test_pooled_beside_chats(in_flight: int) -> None:
    """Few blocks, small chunks, shared prefixes: every embedding is the one computed alone."""
    options = SimOptions(num_blocks=24, block_size=4, max_in_flight=in_flight)
    config = EngineConfig(block_size=4, max_num_seqs=6, max_num_batched_tokens=8)
    sim = Pooled(options, config)
    rng = np.random.default_rng(in_flight)
    shared = rng.integers(0, 200, 20).tolist()
    asked: dict[str, tuple[list[int], Pooling]] = {}
    scored: dict[str, list[int]] = {}
    for at in range(24):
        prompt = [*shared[: int(rng.integers(1, 20))], *rng.integers(0, 200, int(rng.integers(1, 30))).tolist()]
        if at % 3:
            pooling: Pooling = "mean" if at % 2 else "last"
            request_id = sim.add(prompt, params(pooling))
            asked[request_id] = (prompt, pooling)
        else:
            params_of_chat = SamplingParams(max_tokens=40, temperature=0.0, prompt_logprobs=2, n=1 + at % 2)
            scored[sim.add(prompt, params_of_chat, priority=-1)] = prompt
        sim.run(int(rng.integers(0, 4)))
    stats = sim.finish()
    assert stats.prompt_tokens_cached > 0
    assert set(sim.embeddings) == set(asked) and set(sim.scores) == set(scored)
    assert all(sim.scores[request_id] == scores_of(prompt) for request_id, prompt in scored.items())
    for request_id, (prompt, pooling) in asked.items():
        np.testing.assert_allclose(sim.embeddings[request_id], pooled_alone(prompt, pooling), rtol=1e-6)


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_one_that_gave_way_begins_its_sum_anew(in_flight: int, pooling: Pooling) -> None:
    options = SimOptions(num_blocks=16, block_size=4, max_in_flight=in_flight)
    sim = Pooled(options, EngineConfig(block_size=4, max_num_seqs=2, max_num_batched_tokens=2))
    sim.add(list(range(4)), SamplingParams(max_tokens=44, temperature=0.0), priority=-1)
    sim.run(3)
    prompt = list(range(100, 136))
    request_id = sim.add(prompt, params(pooling))
    (seq,) = sim.group(request_id)
    sim.finish()
    assert seq.num_preemptions > 0
    np.testing.assert_allclose(sim.embeddings[request_id], pooled_alone(prompt, pooling), rtol=1e-6)


@pytest.mark.parametrize("in_flight", [1, 2])
def test_scores_are_given_once_whoever_gives_way(in_flight: int) -> None:
    """One that gave way before its first token is read and scored anew; one that did later is not scored again."""
    options = SimOptions(num_blocks=16, block_size=4, max_in_flight=in_flight)
    sim = Pooled(options, EngineConfig(block_size=4, max_num_seqs=2, max_num_batched_tokens=2))
    sim.add(list(range(4)), SamplingParams(max_tokens=44, temperature=0.0), priority=-1)
    sim.run(3)
    prompt = list(range(100, 124))
    for length in (24, 20):
        request_id = sim.add(prompt[:length], SamplingParams(max_tokens=9, temperature=0.0, prompt_logprobs=2))
        (seq,) = sim.group(request_id)
        sim.drain()
        assert sim.scores[request_id] == scores_of(prompt[:length])
    assert seq.group.cached_tokens == 0
    sim.finish()
    assert sim.engine.scheduler.counters.preemptions > 0


@pytest.mark.parametrize("wanted", [params("mean"), params("last"), SamplingParams(max_tokens=1, prompt_logprobs=2)])
def test_what_the_last_chunk_told_of_one_that_gave_way_meanwhile_counts(wanted: SamplingParams) -> None:
    """It gives way while the step that reads its last tokens is in flight: with that step's token it is done."""
    sim = Pooled(SimOptions(block_size=4), EngineConfig(block_size=4, max_num_batched_tokens=64))
    prompt = list(range(100, 130))
    request_id = sim.add(prompt, wanted)
    sim.step()
    (seq,) = sim.group(request_id)
    assert seq.row >= 0 and not sim.records[request_id, 0].tokens
    give_way(sim, seq)
    sim.finish()
    if wanted.pooling is None:
        assert sim.scores[request_id] == scores_of(prompt)
    else:
        np.testing.assert_allclose(sim.embeddings[request_id], pooled_alone(prompt, wanted.pooling), rtol=1e-6)


def test_a_mean_reads_what_the_cache_holds_too() -> None:
    sim = Pooled(SimOptions(block_size=4), EngineConfig(block_size=4))
    prompt = list(range(30))
    for pooling in ("mean", "mean", "last"):
        request_id = sim.add(prompt, params(pooling))  # type: ignore[arg-type]
        sim.drain()
        np.testing.assert_allclose(sim.embeddings[request_id], pooled_alone(prompt, pooling), rtol=1e-6)  # type: ignore[arg-type]
    assert [record.cached for record in sim.records.values()] == [0, 0, 29]
    chat = sim.add(prompt)
    sim.finish()
    assert sim.records[chat, 0].cached == 29


@pytest.mark.parametrize("fields", [{"n": 2, "max_tokens": 1}, {"max_tokens": 2}, {}])
def test_an_embedding_draws_one_token(fields: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="for an embedding"):
        SamplingParams(pooling="mean", **fields)  # type: ignore[arg-type]
