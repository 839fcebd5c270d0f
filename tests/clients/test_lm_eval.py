"""EleutherAI's lm-evaluation-harness over tasks of its three kinds, by tokens that it asks the server for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from servers import Server
from spoken import say

pytestmark = pytest.mark.python_package("lm_eval")

#: What the harness sums up is what the server says of each token, in another order of addition.
TOLERANCE = 1e-3
CHOICES = [
    {"question": "What is the capital of France?", "choices": ["London", "Paris", "Rome"], "answer": 1},
    {"question": "How many legs has a spider?", "choices": ["eight", "two hundred", "日本語"], "answer": 0},
]
PROSE = "The sun rose slowly over the quiet harbour, and the fishermen were already at work."
ANSWERS = [{"text": say("Four.\nAnd more."), "answer": "Four."}, {"text": say("Paris."), "answer": "Paris."}]

Run = Callable[..., tuple[dict[str, Any], list[dict[str, Any]]]]


def task(kind: str, text: str, target: str, *metrics: str, **more: Any) -> dict[str, Any]:
    """A task as its YAML file says it; JSON is YAML."""
    return {
        "task": "local",
        "dataset_path": "json",
        "test_split": "test",
        "output_type": kind,
        "doc_to_text": text,
        "doc_to_target": target,
        "metric_list": [{"metric": metric} for metric in metrics],
        **more,
    }


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs one task over rows, against one of a server's paths; answers its metrics, and its samples in order."""

    def run(where: str, name: str, how: dict[str, Any], rows: list[dict[str, Any]], *options: str) -> Any:
        (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
        files = {"data_files": {"test": str(tmp_path / "rows.jsonl")}}
        (tmp_path / "local.yaml").write_text(json.dumps({**how, "dataset_kwargs": files}))
        command = [str(Path(sys.executable).with_name("lm_eval")), "--tasks", "local", "--include_path", str(tmp_path)]
        command += ["--model", "local-chat-completions" if "/chat/" in where else "local-completions"]
        command += ["--model_args", f"model={name},base_url={where},num_concurrent=4"]
        command += ["--output_path", str(tmp_path / "out"), "--log_samples", *options]
        done = subprocess.run(
            command,
            env={**os.environ, "OPENAI_API_KEY": "none", "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        (results,) = (tmp_path / "out").rglob("results_*.json")
        (samples,) = (tmp_path / "out").rglob("samples_*.jsonl")
        found = [json.loads(line) for line in samples.read_text().splitlines()]
        return json.loads(results.read_text())["results"]["local"], sorted(found, key=lambda one: one["doc_id"])

    return run


def scored(server: Server, prompt: str | list[int], begin: int, by: str) -> tuple[float, bool]:
    """How likely what follows ``begin`` in the prompt is, and whether each token of it was the likeliest: one request.
    ``by``: what ``begin`` counts, "text_offset" (characters) or "tokens"."""
    body = {"model": "demo", "prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": 0}
    told = server.post("/v1/completions", body).json()["choices"][0]["logprobs"]
    places = range(len(told["tokens"])) if by == "tokens" else told["text_offset"]
    there = [i for i, place in enumerate(places) if place >= begin]
    likeliest = all(told["token_logprobs"][i] == max(told["top_logprobs"][i].values()) for i in there)
    return sum(told["token_logprobs"][i] for i in there), likeliest


def test_choices_are_scored_by_their_tokens(run: Run, demo_server: Server) -> None:
    how = task("multiple_choice", "Question: {{question}}\nAnswer:", "{{answer}}", "acc", doc_to_choice="{{choices}}")
    results, samples = run(demo_server.url + "/v1/completions", "demo", how, CHOICES)
    assert results["acc,none"] == 1.0
    for sample, row in zip(samples, CHOICES, strict=True):
        context = f"Question: {row['question']}\nAnswer:"
        for choice, ((likelihood, greedy),) in zip(row["choices"], sample["resps"], strict=True):
            wanted, likeliest = scored(demo_server, f"{context} {choice}", len(context), "text_offset")
            assert float(likelihood) == pytest.approx(wanted, abs=TOLERANCE) and greedy == str(likeliest)


def test_texts_are_scored_from_their_first_token(run: Run, demo_server: Server) -> None:
    """Each after the token that texts begin with, which the harness learns from the server."""
    texts = [PROSE, " ".join([PROSE] * 20)]
    how = task("loglikelihood_rolling", "", "{{text}}", "word_perplexity", "byte_perplexity")
    results, samples = run(demo_server.url + "/v1/completions", "demo", how, [{"text": text} for text in texts])
    first = demo_server.post("/tokenize", {"prompt": demo_server.get("/tokenizer_info").json()["bos_token"]}).json()
    assert 1 < results["byte_perplexity,none"] < results["word_perplexity,none"]
    for sample, text in zip(samples, texts, strict=True):
        ids = demo_server.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json()["tokens"]
        wanted, _ = scored(demo_server, [first["tokens"][-1], *ids], 1, "tokens")
        ((likelihood,),) = sample["resps"]
        assert float(likelihood) == pytest.approx(wanted, abs=TOLERANCE * len(ids))


@pytest.mark.parametrize(
    ("path", "options"), [("/v1/completions", []), ("/v1/chat/completions", ["--apply_chat_template"])]
)
def test_answers_end_where_the_task_says(run: Run, spoken_server: Server, path: str, options: list[str]) -> None:
    until = {"generation_kwargs": {"until": ["\n"], "max_gen_toks": 40, "temperature": 0.0}}
    how = task("generate_until", "{{text}}", "{{answer}}", "exact_match", **until)
    results, samples = run(spoken_server.url + path, "spoken", how, ANSWERS, *options)
    assert [sample["resps"] for sample in samples] == [[["Four."]], [["Paris."]]]
    assert results["exact_match,none"] == 1.0
