"""Simulated serving: arithmetic that can be done by hand, policies in their order, fits that come back."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from published import QWEN3_8B
from typer.testing import CliRunner

from bireme.bench import serve, simulated_levels
from bireme.bench.arrivals import Ramp, ramp, schedule
from bireme.bench.ask import Target
from bireme.bench.data import draw
from bireme.bench.dataset import DataSpec, Drawn
from bireme.bench.fit import fit_front, fit_run
from bireme.bench.level import Load
from bireme.bench.objective import Objective
from bireme.bench.policies import Policy, policies
from bireme.bench.results import Run
from bireme.bench.routing import route
from bireme.bench.simulated_levels import SimulatedLevels
from bireme.bench.simulation import Machine, Outcome, simulate
from bireme.bench.simulation_table import outcome_table
from bireme.bench.sources import IdSource, WordSource
from bireme.bench.timed_backend import LinearCost
from bireme.bench.traffic import Traffic
from bireme.core.config import EngineConfig
from bireme.server.cli import app

CONFIG = EngineConfig(max_num_seqs=8, max_queue=10_000)
IDS = IdSource(50_000)


def machine(base: float = 0.01, per_token: float = 1e-4, pool: int = 1 << 16) -> Machine:
    return Machine(LinearCost(base, per_token), pool, 4096)


def run(policy: Policy, load: Load, spec: DataSpec, count: int, **options: object) -> Outcome:
    drawn = draw(spec, IDS, count)
    if load.loop == "open":
        assert load.rate is not None
        drawn = Drawn(drawn.sessions, schedule(len(drawn.sessions), load.rate, seed=1))
    return simulate(machine(), policy, load, drawn, **options)  # type: ignore[arg-type]


def test_one_request_by_hand() -> None:
    """A prompt of 100 tokens in one step of 20 ms, then nine steps of one token, 10.1 ms each."""
    outcome = run(Policy("bireme", CONFIG), Load("closed", 1, None), DataSpec(input_len=100, output_len=10), 1)
    spreads = outcome.level.spreads
    assert spreads["ttft"].mean == pytest.approx(20.0)
    assert spreads["tpot"].mean == pytest.approx(10.1)
    assert spreads["e2el"].mean == pytest.approx(20 + 9 * 10.1)
    assert outcome.steps == 10 and outcome.simulated == pytest.approx(0.1109)
    assert (outcome.level.input_tokens, outcome.level.output_tokens) == (100, 10)


def test_each_idea_gains() -> None:
    """Shared prefixes under load: what Bireme does beats every policy that lets an idea go."""
    spec = DataSpec("prefix", prefix_len=512, num_prefixes=2, input_len=64, output_len=40, range_ratio=0.5)
    every = policies(CONFIG, 1 << 14, 4096)
    assert [policy.name for policy in every][0] == "bireme" and len({policy.name for policy in every}) == 6
    drawn = draw(spec, IDS, 64)
    outcomes = {p.name: simulate(machine(pool=1 << 14), p, Load("closed", 16, None), drawn) for p in every}
    rates = {name: outcome.level.output_throughput for name, outcome in outcomes.items()}
    assert rates["bireme"] > rates["no prefix cache"] > rates["static batches"] > rates["one at a time"]
    assert rates["bireme"] > rates["contiguous"] > rates["one at a time"]
    assert outcomes["bireme"].hit_rate > 0.7 and outcomes["no prefix cache"].hit_rate == 0
    assert all(outcome.level.completed == 64 and not outcome.level.failures for outcome in outcomes.values())
    assert outcome_table(list(outcomes.values())).count("\n") == 7


def test_chunks_keep_streams_flowing() -> None:
    """Long prompts stall running streams where they are read whole, and hardly where they are cut."""
    spec = DataSpec(input_len=3000, output_len=60)
    config = EngineConfig(max_num_seqs=8, max_queue=1000, max_stall_ms=50, max_num_batched_tokens=4096)
    chunked, whole = (policies(config, 1 << 16, 4096)[i] for i in (0, 2))
    gaps = {}
    for policy in (chunked, whole):
        outcome = run(policy, Load("open", None, 1.5), spec, 20)
        gaps[policy.name] = outcome.level.spreads["itl"].percentiles[99]
    assert gaps["no chunking"] > 300 > 60 > gaps["bireme"]


def test_turns_find_their_history_in_the_cache() -> None:
    spec = DataSpec("multiturn", input_len=100, output_len=50, turns=4, think=1.0)
    outcome = run(Policy("bireme", CONFIG), Load("closed", 2, None), spec, 16)
    assert outcome.level.completed == 16
    history = 0 + 150 + 300 + 450
    assert outcome.hit_rate == pytest.approx(history / (history + 400), abs=0.05)
    assert outcome.simulated > 2 * 3 * 1.0


def test_replicas_share_the_load() -> None:
    spec = DataSpec(input_len=200, output_len=50)
    policy = Policy("bireme", CONFIG)
    one = run(policy, Load("closed", 8, None), spec, 64)
    four = run(policy, Load("closed", 32, None), spec, 256, replicas=4)
    assert four.level.completed == 256
    assert four.level.output_throughput == pytest.approx(4 * one.level.output_throughput, rel=0.02)


def test_users_are_dealt_out_to_machines_without_making_more() -> None:
    sessions = DataSpec(input_len=200, output_len=50)
    outcome = run(Policy("bireme", CONFIG), Load("closed", 5, None), sessions, 40, replicas=4)
    assert outcome.level.max_concurrent == 5 and outcome.level.completed == 40
    with pytest.raises(ValueError, match="concurrency is 3, fewer than 4 replicas"):
        run(Policy("bireme", CONFIG), Load("closed", 3, None), sessions, 40, replicas=4)


@pytest.mark.parametrize("front", [0.0, 0.004])
def test_places_in_an_open_loop_are_waited_for(front: float) -> None:
    """Ten conversations of two turns come at once and three have a place: whoever waits is charged for it, and a
    second turn needs no place of its own."""
    drawn = draw(DataSpec("multiturn", input_len=50, output_len=10, turns=2, think=0.5), IDS, 20)
    drawn = Drawn(drawn.sessions, [0.1] * len(drawn.sessions))
    spot = Machine(LinearCost(0.01, 1e-4), 1 << 16, 4096, front=front)
    level = simulate(spot, Policy("b", CONFIG), Load("open", 3, float("inf")), drawn).level
    assert level.completed == 20 and level.max_concurrent == 3
    waits = sorted(level.series["ttft_ms"])
    assert waits[9] < 100 and [wait // 600 for wait in waits[-7:]] == [1, 1, 1, 2, 2, 2, 3]
    free = simulate(spot, Policy("b", CONFIG), Load("open", None, float("inf")), drawn).level
    assert free.max_concurrent == 10 and max(free.series["ttft_ms"]) < 400


def test_a_refused_turn_ends_its_conversation_and_says_why() -> None:
    drawn = draw(DataSpec("multiturn", input_len=3000, output_len=10, turns=3), IDS, 6)
    level = simulate(machine(), Policy("b", CONFIG), Load("closed", 1, None), drawn).level
    assert (level.completed, level.failures, level.unasked) == (2, {"HTTP 400": 2}, 2)
    assert "maximum context length is 4096 tokens" in level.reasons["HTTP 400"]


def test_prompts_that_begin_alike_go_to_one_machine() -> None:
    """Sixteen prefixes over four machines: each is read once, not four times."""
    drawn = draw(DataSpec("prefix", prefix_len=512, num_prefixes=16, input_len=32, output_len=8), IDS, 128)
    machines = route(drawn, 4, "prefix")
    heads = [{session.turns[0].content[:64] for session in share.sessions} for share in machines]
    assert sum(map(len, heads)) == 16 and len(set.union(*heads)) == 16
    assert sum(len(share.sessions) for share in machines) == 128
    load, policy = Load("closed", 16, None), Policy("bireme", CONFIG)
    hits = {name: simulate(machine(), policy, load, drawn, None, 4, 0, name).hit_rate for name in ("turns", "prefix")}
    assert hits["prefix"] > hits["turns"] + 0.2


def test_the_http_side_takes_one_request_after_the_other() -> None:
    """Four requests of one step each: with 5 ms of HTTP for each, the last first token is 20 ms after it was due or
    later, and the fit finds the 5 ms again in a run of one user."""
    spec, front = DataSpec(input_len=100, output_len=10), 0.005
    spot = Machine(LinearCost(0.01, 1e-4), 1 << 16, 4096, front=front)
    outcome = simulate(spot, Policy("b", CONFIG), Load("closed", 4, None), draw(spec, IDS, 4))
    ttft = outcome.level.spreads["ttft"]
    assert ttft.mean is not None and 25 <= min(outcome.level.series["ttft_ms"]) < max(outcome.level.series["ttft_ms"])
    alone = simulate(spot, Policy("b", CONFIG), Load("closed", 1, None), draw(spec, IDS, 4))
    measured = json.loads(json.dumps(Run("one", {}, [alone.level]).as_dict()))
    assert fit_front(measured, LinearCost(0.01, 1e-4)) == pytest.approx(front, rel=0.05)


def test_goodput_falls_as_load_grows() -> None:
    objective = Objective({"ttft": 300, "tpot": 30})
    spec = DataSpec(input_len=500, output_len=30)
    shares = []
    for rate in (1.0, 60.0):
        attainment = run(Policy("b", CONFIG), Load("open", None, rate), spec, 200, objective=objective).level.attainment
        assert attainment is not None
        shares.append(attainment.share)
    assert shares[0] > 0.95 and shares[1] < 0.5


def test_a_small_pool_preempts_and_still_answers() -> None:
    spec = DataSpec(input_len=100, output_len=300)
    outcome = simulate(
        machine(pool=1024), Policy("bireme", CONFIG), Load("closed", 8, None), draw(spec, IDS, 16), keep=50
    )
    assert outcome.preemptions > 0 and outcome.level.completed == 16 and outcome.kv_peak > 0.9
    assert len(outcome.records) == 50 and outcome.records[0].counts[0] > 1
    first = outcome.records[0].blocks
    assert len(first[0]) == 7 and len({block for blocks in first for block in blocks}) == sum(map(len, first))


def test_a_fit_predicts_what_was_not_measured() -> None:
    """Fitted to 1, 4 and 16 at once, it foretells 8: throughput and p95 TPOT within 15 percent."""
    cost = LinearCost(0.02, 3e-4, 2e-8)
    spec, config = DataSpec(input_len=150, output_len=60, range_ratio=0.3), EngineConfig(max_num_seqs=16)

    def level(users: int, by: LinearCost) -> Outcome:
        spot = Machine(by, 1 << 16, 4096)
        return simulate(spot, Policy("b", config), Load("closed", users, None), draw(spec, IDS, 10 * users, users))

    measured = Run("measured", {}, [level(users, cost).level for users in (1, 4, 16)])
    fitted = fit_run(json.loads(json.dumps(measured.as_dict())))
    real, foretold = level(8, cost).level, level(8, fitted).level
    assert foretold.output_throughput == pytest.approx(real.output_throughput, rel=0.15)
    assert foretold.spreads["tpot"].percentiles[95] == pytest.approx(real.spreads["tpot"].percentiles[95], rel=0.15)
    with pytest.raises(ValueError, match="1 closed-loop levels"):
        fit_run(Run("short", {}, measured.levels[:1]).as_dict())


def test_the_command_writes_a_table_and_a_timeline(tmp_path: Path) -> None:
    config, page, data = tmp_path / "config.json", tmp_path / "t.html", tmp_path / "s.json"
    config.write_text(json.dumps(QWEN3_8B), encoding="utf-8")
    arguments = ["simulate", str(config), "ttft:1000", "--goodput", "tpot:50", "--chip", "H200", "--concurrency", "8"]
    more = ["--num-prompts", "16", "--policies", "bireme,one at a time", "--html", str(page), "--json", str(data)]
    result = CliRunner().invoke(app, [*arguments, *more])
    assert result.exit_code == 0, result.output
    assert "Simulated, not measured" in result.output and "| one at a time | 8 at once |" in result.output
    written = json.loads(data.read_text(encoding="utf-8"))
    rows = written["simulated"]
    assert written["options"]["goodput"] == "tpot:50 ttft:1000" and "roofline of H200" in written["basis"]
    assert [row["policy"] for row in rows] == ["bireme", "one at a time"]
    assert rows[0]["output_throughput"] > 3 * rows[1]["output_throughput"]
    text = page.read_text(encoding="utf-8")
    assert re.search(r"row 0 reads \d+ tokens; blocks 0-\d+<", text) and re.search(r"row \d decodes; blocks ", text)
    assert 'class="read"' in text and 'class="decode"' in text and text.count("<svg") == 3
    assert re.search(r"KV blocks held, of [\d,]{5,}", text)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(QWEN3_8B), encoding="utf-8")
    return config


def simulated(model: Path, *arguments: str) -> list[dict[str, str]]:
    """The command's tables, a row as a dict."""
    result = CliRunner().invoke(app, ["simulate", str(model), *arguments])
    assert result.exit_code == 0, result.output
    found, head = [], []
    for line in result.output.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| policy"):
            head = cells
        elif line.startswith("| "):
            found.append(dict(zip(head, cells, strict=True)))
    return found


def test_ramps_are_those_of_bench_serve(model: Path, tmp_path: Path) -> None:
    """The same moments by the same code, and the same keys beside them."""
    path = tmp_path / "s.json"
    shape = ["--ramp-up-start-rps", "2", "--ramp-up-end-rps", "40", "--ramp-up-strategy", "exponential"]
    more = ["--burstiness", "2", "--num-prompts", "60", "--output-len", "4", "--seed", "5", "--max-concurrency", "64"]
    (row,) = simulated(model, *shape, *more, "--policies", "bireme", "--json", str(path))
    assert row["load"] == "2 to 40 req/s"
    written = json.loads(path.read_text(encoding="utf-8"))
    assert "open loop, exponential ramp, burstiness 2, no more than 64 at once" in written["basis"]
    (found,) = written["simulated"]
    keys = ("ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps", "request_rate", "max_concurrency")
    assert [found[key] for key in keys] == ["exponential", 2, 40, "inf", 64]
    due = ramp(60, Ramp(2, 40, "exponential"), 2, seed=5)
    assert sorted(found["series"]["start"]) == pytest.approx([at - due[0] for at in due], abs=1e-3)


def test_a_seed_has_the_same_moments_for_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two levels of an open loop, put on a server and on a simulated one."""
    sent: list[list[float]] = []

    async def note(target: object, sessions: object, due: list[float], *rest: object) -> None:
        sent.append(due)

    monkeypatch.setattr(serve, "open_samples", note)
    traffic = Traffic(DataSpec(output_len=4), rates=(4.0, 9.0), burstiness=0.5, num_prompts=6, seed=3)
    runner = serve.Runner(Target("http://nowhere", "m"), serve.Plan(traffic, warmups=0), WordSource())
    levels = SimulatedLevels(machine(), traffic, IDS, None, {})
    for load in traffic.loads():
        runner.run(load)
        levels.put(Policy("bireme", CONFIG), load)
    starts = [outcome.level.series["start"] for outcome in levels.outcomes]
    assert [sorted(start) for start in starts] == [pytest.approx([at - due[0] for at in due], abs=1e-3) for due in sent]
    assert sent[0] != sent[1]


def test_the_largest_good_load_is_searched_for_under_each_policy(model: Path, tmp_path: Path) -> None:
    """Serving one at a time stands a fraction of the load; both searches begin anew, with the same requests."""
    path = tmp_path / "s.json"
    load = [
        "--request-rate",
        "4",
        "--num-prompts",
        "60",
        "--output-len",
        "32",
        "--find-goodput",
        "--goodput",
        "ttft:500",
    ]
    more = ["--policies", "bireme,one at a time", "--json", str(path), "--attainment", "0.8"]
    result = CliRunner().invoke(app, ["simulate", str(model), *load, *more])
    assert result.exit_code == 0, result.output
    found = dict(re.findall(r"^(\S.*): GOODPUT: (\S+) req/s .*80% of the requests meet ttft:500", result.output, re.M))
    assert float(found["bireme"]) > 5 * float(found["one at a time"]) > 0
    written = json.loads(path.read_text(encoding="utf-8"))
    assert [text.partition(":")[0] for text in written["found"]] == ["bireme", "one at a time"]
    for name, best in found.items():
        levels = {row["load"]: row for row in written["simulated"] if row["policy"] == name}
        assert levels[f"{best} req/s"]["slo_attainment"] >= 0.8
        larger = [row for row in levels.values() if row["request_rate"] > float(best)]
        assert larger and all(row["slo_attainment"] < 0.8 for row in larger)
    starts = [row["series"]["start"] for row in written["simulated"] if row["load"] == "4 req/s"]
    assert len(starts) == 2 and sorted(starts[0]) == sorted(starts[1])


def test_what_was_simulated_before_an_interrupt_is_kept(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter([simulate])

    def until_interrupted(*given: Any) -> Outcome:
        inner = next(calls, None)
        if inner is None:
            raise KeyboardInterrupt
        return inner(*given)

    monkeypatch.setattr(simulated_levels, "simulate", until_interrupted)
    load = ["--concurrency", "1,2", "--num-prompts", "4", "--policies", "bireme"]
    result = CliRunner().invoke(app, ["simulate", str(model), *load])
    assert result.exit_code == 130
    assert "| bireme | 1 at once |" in result.output and "2 at once" not in result.output
    assert "NOTE: INTERRUPTED: this is a part of what was asked" in result.output


def test_what_failed_is_said_with_its_reason(model: Path) -> None:
    result = CliRunner().invoke(app, ["simulate", str(model), "--concurrency", "1", "--input-len", "50000"])
    assert "NOTE: bireme, 1 at once: 8 of 8 requests FAILED: 8 x HTTP 400 (the prompt is 50000 tokens" in result.output


def test_a_pool_is_no_larger_than_a_server_makes_it(model: Path) -> None:
    load = ["--concurrency", "2", "--num-prompts", "4", "--policies", "bireme", "--memory", "1000TB"]
    result = CliRunner().invoke(app, ["simulate", str(model), *load, "--max-model-len", "4096", "--max-num-seqs", "8"])
    assert "70% and 0.5 ms a step; a KV pool of 32,768 tokens" in result.output


def fit_file(path: Path, **about: object) -> Path:
    """A run of two levels on a device of 10 ms a step and 0.1 ms a token."""
    levels = [run(Policy("b", CONFIG), Load("closed", n, None), DataSpec(input_len=100), 32).level for n in (1, 4)]
    Run("a run", dict(about), levels).write(path)
    return path


def test_a_fit_says_whose_it_is(model: Path, tmp_path: Path) -> None:
    """Another model's step times, on a memory that nobody named: neither goes without a word."""
    load = ["--concurrency", "2", "--num-prompts", "8", "--input-len", "100", "--policies", "bireme"]
    fit = fit_file(tmp_path / "fit.json", model_id="tiny-chat", machine={"cpu": "A Processor"})
    result = CliRunner().invoke(app, ["simulate", str(model), *load, "--fit", str(fit)])
    assert result.exit_code == 0, result.output
    assert "fit.json: tiny-chat, measured on A Processor" in result.output
    assert f"NOTE: the step times are those of tiny-chat, and {model} is simulated" in result.output
    assert "NOTE: the KV pool is that of h100, not of what was measured; give its --memory" in result.output
    fit = fit_file(tmp_path / "own.json", model_id=model.parent.name)
    plain = CliRunner().invoke(app, ["simulate", str(model), *load, "--fit", str(fit), "--memory", "40GB"])
    assert plain.exit_code == 0 and "NOTE" not in plain.output
    far = ["--concurrency", "16", "--num-prompts", "32", "--input-len", "200", "--policies", "bireme"]
    text = CliRunner().invoke(app, ["simulate", str(model), *far, "--fit", str(fit), "--memory", "40GB"]).output
    assert "NOTE: prompts of 200 tokens are simulated, and 100 were the most measured: step times are guessed" in text
    assert text.count("NOTE: 16 requests at once are simulated, and 4 were the most measured") == 1
    for given in (["--efficiency", "0.5"], ["--overhead-ms", "1"], ["--tensor-parallel", "2"]):
        refused = CliRunner().invoke(app, ["simulate", str(model), *load, "--fit", str(fit), *given])
        assert refused.exit_code == 2 and f"leave out {given[0]}" in refused.output


def test_an_objective_kept_is_a_row_beside_none(model: Path) -> None:
    """More than the device can do: with --slo more requests are good, and with refusals every one that was let in."""
    load = ["--request-rate", "30", "--num-prompts", "250", "--range-ratio", "0.5", "--slo", "ttft=600ms,tpot=50ms"]
    kept, none = simulated(model, *load, "--policies", "bireme,no objective")
    assert (kept["policy"], none["policy"]) == ("bireme", "no objective")
    assert float(kept["good req/s"]) > 1.1 * float(none["good req/s"])
    refused, _ = simulated(model, *load, "--slo-policy", "refuse", "--policies", "bireme,no objective")
    assert int(refused["failed"]) > 0 and refused["good req/s"] == refused["req/s"]


def test_users_are_served_by_their_weights(model: Path) -> None:
    load = ["--request-rate", "40", "--num-prompts", "120", "--weights", "1,3", "--max-num-seqs", "16"]
    rows = simulated(model, *load, "--output-len", "40", "--policies", "bireme,no fair shares")
    waits = {(row["policy"], row["weight"]): _ms(row["TTFT p50"]) for row in rows if "weight" in row}
    assert len(waits) == 4 and {row["requests"] for row in rows if "weight" in row} == {"60"}
    assert waits["bireme", "1"] > 2 * waits["bireme", "3"]
    assert waits["no fair shares", "1"] == pytest.approx(waits["no fair shares", "3"], rel=0.2)


def _ms(text: str) -> float:
    number, unit = text.split()
    return float(number) * {"ms": 1, "s": 1000}[unit]


def test_the_engines_own_settings_reach_it(model: Path) -> None:
    load = ["--concurrency", "8", "--num-prompts", "16", "--dataset", "prefix"]
    load += ["--input-len", "64", "--policies", "bireme"]
    (cached,), (not_cached,) = (simulated(model, *load, *more) for more in ([], ["--no-enable-prefix-caching"]))
    assert cached["cached"] != "0%" and not_cached["cached"] == "0%"
    (full,) = simulated(model, *load, "--max-queue", "2", "--max-num-seqs", "1")
    assert int(full["failed"]) > 0
    (coarse,) = simulated(model, *load, "--block-size", "256")
    assert coarse["cached"] != "0%"


def test_two_devices_that_share_a_model_serve_more(model: Path) -> None:
    load = ["--concurrency", "16", "--num-prompts", "32", "--policies", "bireme"]
    (one,), (two,) = (simulated(model, *load, "--tensor-parallel", count) for count in ("1", "2"))
    assert 1.2 < float(two["tok/s out"]) / float(one["tok/s out"]) < 2


def test_files_of_text_are_simulated(model: Path, tmp_path: Path) -> None:
    """Words become as many ids as tokens, the same for the same words; a trace keeps its times."""
    path = tmp_path / "chat.jsonl"
    lines = [{"messages": [{"role": "user", "content": "the same long question " * 20}], "max_tokens": 4}] * 6
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    given = ["--dataset-path", str(path), "--policies", "bireme"]
    (row,) = simulated(model, "--dataset", "jsonl", *given, "--concurrency", "1", "--num-prompts", "6")
    assert int(row["cached"].rstrip("%")) > 60
    lines = [{"timestamp": 100 * i, "input_length": 30, "output_length": 3} for i in range(1100)]
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    (row,) = simulated(model, "--dataset", "trace", *given)
    assert row["load"] == "the trace's times" and float(row["req/s"]) == pytest.approx(10, rel=0.02)
    ids = IdSource(1000)
    assert ids.ids_of("one two") == ids.ids_of("one two") and ids.ids_of((3, 4)) == (3, 4)
    assert ids.count("A sentence of rather ordinary words, as many have it.") == pytest.approx(13, abs=3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either --concurrency"),
        (["--concurrency", "1", "--policies", "magic"], "policies is 'magic'"),
        (["--concurrency", "1", "--policies", "bireme,magic"], "known here: all, bireme"),
        (["--concurrency", "1", "--policies", "no objective"], "policies is 'no objective'"),
        (["--concurrency", "1", "--slo", "soon"], "no term of an objective"),
        (["--concurrency", "1", "--max-num-batched-tokens", "8"], "less than max_num_seqs"),
        (["--concurrency", "1", "--weights", "1,0"], "must be above 0"),
        (["--concurrency", "1", "--tensor-parallel", "3"], "3 devices can't share evenly"),
        (["--dataset", "trace", "--dataset-path", "x", "--concurrency", "1"], "a trace has times of its own"),
        (["--concurrency", "1", "--memory", "1GB"], "does not fit"),
        (["--concurrency", "1", "--fit", "nowhere.json"], "no result of"),
        (["--concurrency", "1", "--burstiness", "2"], "--burstiness belong to an open loop"),
        (["--concurrency", "1", "--max-concurrency", "2"], "--concurrency makes a closed one"),
        (["--ramp-up-end-rps", "2"], "a ramp needs both"),
        (["--request-rate", "1", "--ramp-up-start-rps", "1", "--ramp-up-end-rps", "2"], "or a ramp (open loop)"),
        (["--concurrency", "1", "--kv-cache-dtype", "q3"], "kv-cache-dtype is 'q3'; it must be auto, "),
        (["--concurrency", "1", "--memory", "80"], "write the unit too"),
        (["--concurrency", "1", "--overhead-ms", "inf"], "overhead-ms is inf"),
        (["--concurrency", "1", "--think", "2"], "--think says nothing of --dataset random"),
        (["--concurrency", "1", "--attainment", "0.5"], "--find-goodput searches for"),
        (["--concurrency", "1", "--find-goodput"], "--find-goodput needs an objective"),
        (["--concurrency", "1,2", "--find-goodput", "--goodput", "ttft:9"], "give one --concurrency or"),
        (["--concurrency", "4", "--replicas", "2", "--find-goodput", "--goodput", "ttft:9"], "needs an open loop"),
    ],
)
def test_bad_input_is_named(arguments: list[str], message: str, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(QWEN3_8B), encoding="utf-8")
    result = CliRunner().invoke(app, ["simulate", str(config), *arguments])
    assert result.exit_code == 2 and message in result.output
