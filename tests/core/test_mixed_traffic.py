"""Everything at once over small pools: one script of requests, aborts and leaps of the clock, run with the cache on and
off and with one and two steps in flight. Each run is held to the rules and oracles, and all give the same answers."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from automaton import Automaton, random_automaton
from oracles import pooled_alone, scores_of
from simulation import Key, Record, Simulation

from bireme.backends.sim import SimOptions
from bireme.core.config import EngineConfig
from bireme.core.grammar import GrammarSpec
from bireme.core.request import FinishReason, QueueFullError, RequestRejectedError, SamplingParams, SequenceOutput
from bireme.core.slo import Slo

VOCAB, ENDS, NAN = 40, frozenset({1, 2}), 4
WHOLE = (FinishReason.STOP, FinishReason.LENGTH)


class Mixed(Simulation):
    """Keeps what else comes out, and holds it to the oracles."""

    def __init__(self, options: SimOptions, config: EngineConfig) -> None:
        super().__init__(options, config)
        self.asked: dict[str, SamplingParams] = {}
        self.grammars: dict[str, Automaton] = {}
        self.told: dict[str, SequenceOutput] = {}

    def _record(self, output: SequenceOutput) -> None:
        super()._record(output)
        if output.embedding is not None or output.prompt_logprobs is not None:
            assert output.request_id not in self.told, "told twice"
            self.told[output.request_id] = output

    def _compare(self, key: Key, record: Record) -> None:
        name = key[0]
        params = self.asked[name]
        if (grammar := self.grammars.get(name)) is None:
            super()._compare(key, record)
        else:
            assert record.finish is not FinishReason.ERROR or NAN in record.prompt, record
            whole = grammar.reads([token for token in record.tokens if token not in ENDS])
            assert whole or record.finish is not FinishReason.STOP, key
        if key[1] or record.finish not in WHOLE:
            return
        prompt = list(record.prompt)
        if params.pooling is not None:
            states = np.frombuffer(self.told[name].embedding or b"", "<f4")
            np.testing.assert_allclose(states, pooled_alone(prompt, params.pooling), rtol=1e-6)
        if params.prompt_logprobs is not None:
            scores = self.told[name].prompt_logprobs
            assert scores is not None and [one.logprob for one in scores] == scores_of(prompt), key


#: Something that happens; the names are those of the script's requests so far, None of the refused.
Act = Callable[[Mixed, list[str | None]], None]


def script(rng: random.Random) -> list[tuple[int, Act]]:
    """What happens, and before which step."""
    made: list[tuple[int, Act]] = []
    now, count = 0, rng.randint(10, 40)
    heads = [tuple(rng.randrange(5, 12) for _ in range(rng.randint(1, 40))) for _ in range(3)]
    rate = rng.choice([0.2, 1.0, 3.0])
    for number in range(count):
        now += int(rng.expovariate(rate))
        made.append((now, add(rng, rng.choice(heads))))
        if rng.random() < 0.2:
            made.append((now + rng.randint(0, 20), abort(number, rng.choice([None, None, 0, 1]))))
        if rng.random() < 0.05:
            made.append((now, leap(rng.choice([0.01, 100.0, 1e6]))))
    made.sort(key=lambda act: act[0])
    return made


def add(rng: random.Random, head: tuple[int, ...]) -> Act:
    prompt = head[: rng.randint(0, len(head))] + tuple(rng.randrange(5, 12) for _ in range(rng.randint(1, 12)))
    prompt += (NAN,) * (rng.random() < 0.03)
    fields: dict[str, object] = {"seed": rng.randrange(1 << 30), "temperature": rng.choice([0.0, 1.0])}
    grammar, kind = None, rng.choice(["chat", "chat", "embedding", "scores", "grammar"])
    if kind == "embedding":
        fields |= {"pooling": rng.choice(["mean", "last"]), "max_tokens": 1}
    else:
        fields |= {"max_tokens": rng.choice([1, 5, 20, 60, None]), "n": rng.choice([1, 1, 2, 4])}
    if kind == "scores":
        fields["prompt_logprobs"] = rng.choice([0, 2])
    elif kind == "grammar":
        grammar = random_automaton(rng.randrange(1000), VOCAB, first=5)
        fields["grammar"] = GrammarSpec("grammar", "an automaton")
    params = SamplingParams(**fields)  # type: ignore[arg-type]
    whose = {"user": rng.choice("abc"), "priority": rng.choice([0, 0, 1]), "salt": rng.choice(["", "", "x"])}
    weight = rng.choice([None, 0.5, 7.0])

    def act(sim: Mixed, names: list[str | None]) -> None:
        try:
            name = sim.add(prompt, params, weight=weight, grammar=grammar, **whose)
        except (RequestRejectedError, QueueFullError):
            names.append(None)
            return
        names.append(name)
        sim.asked[name] = params
        if grammar is not None:
            sim.grammars[name] = grammar

    return act


def abort(number: int, index: int | None) -> Act:
    def act(sim: Mixed, names: list[str | None]) -> None:
        if (name := names[number]) is not None:
            sim.abort(name, index)

    return act


def leap(seconds: float) -> Act:
    def act(sim: Mixed, names: list[str | None]) -> None:
        sim.clock.now += seconds

    return act


def run(
    made: list[tuple[int, Act]], options: dict[str, object], config: dict[str, object], depth: int, caching: bool
) -> Mixed:
    sim = Mixed(
        SimOptions(vocab_size=VOCAB, end_ids=ENDS, nan_token=NAN, max_in_flight=depth, **options),  # type: ignore[arg-type]
        EngineConfig(enable_prefix_caching=caching, **config),  # type: ignore[arg-type]
    )
    names: list[str | None] = []
    now = 0
    for at, act in made:
        while now < at:
            sim.step()
            now += 1
        act(sim, names)
    sim.finish()
    assert sim.engine.scheduler.num_unstarted == sim.engine.scheduler.rows.num_masked == 0
    return sim


@pytest.mark.parametrize("seed", range(16))
def test_the_cache_and_steps_in_flight_change_no_answer(seed: int) -> None:
    rng = random.Random(seed)
    size, rows = rng.choice([1, 2, 3, 4, 8, 16, 64]), rng.randint(1, 8)
    options: dict[str, object] = {
        "num_blocks": max(2, rng.randint(60, 150) // size),
        "block_size": size,
        "max_model_len": rng.choice([48, 200]),
    }
    config: dict[str, object] = {
        "block_size": size,
        "max_num_seqs": rows,
        "max_num_batched_tokens": rows + rng.choice([0, 3, 16, 64]),
        "max_stall_ms": rng.choice([1.0, 60.0, 1e6]),
        "slo": rng.choice([None, Slo(ttft=0.03), Slo(ttft=0.2, tpot=0.011)]),
    }
    made = script(rng)
    runs = [run(made, options, config, depth, caching) for depth in (1, 2) for caching in (True, False)]
    first = runs[0].records
    for other in (one.records for one in runs[1:]):
        assert other.keys() == first.keys()
        for key, record in other.items():
            mine, theirs = first[key].tokens, record.tokens
            both = min(len(mine), len(theirs))
            assert mine[:both] == theirs[:both], key
            if record.finish in WHOLE and first[key].finish in WHOLE:
                assert (mine, first[key].finish) == (theirs, record.finish), key
