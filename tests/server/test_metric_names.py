"""Documented metric names are the exported ones, and they say what they should."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from api_bodies import chat
from prometheus_client.parser import text_string_to_metric_families

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_documented_names_are_the_exported_ones(server: Any) -> None:
    """F06"""
    rows = re.findall(r"^\| `((?:vllm|bireme):\w+)` \| (\w+) \|", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    exported = {}
    for family in text_string_to_metric_families(server.get("/metrics").text):
        exported[family.name + ("_total" if family.type == "counter" else "")] = family.type
        assert family.type != "counter" or all(sample.name.endswith("_total") for sample in family.samples)
        for sample in family.samples:
            assert set(sample.labels) <= {"model_name", "finished_reason", "le", "user"}
            assert sample.labels.get("user", "other") == "other"
    assert dict(rows) == exported and len(rows) == len(exported)


def test_the_dashboard_asks_only_for_names_that_exist(server: Any) -> None:
    """Each query of the Grafana file, against what the server exports; labels and braces checked along."""
    board = json.loads((DOCUMENT.parents[1] / "deploy" / "grafana.json").read_text(encoding="utf-8"))
    asked = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    asked += [one["query"] for one in board["templating"]["list"] if one["type"] == "query"]
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(server.get("/metrics").text):
        names = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
        for ending in names:
            labels[family.name + ending] = {label for sample in family.samples for label in sample.labels}
    for query in asked:
        found = re.findall(r"(?:vllm|bireme):\w+", query)
        assert found and set(found) <= set(labels), query
        for by in re.findall(r"sum by \((\w+)\)", query):
            assert by == "user" or any(by in labels[name] for name in found), query
        assert query.count("(") == query.count(")") and query.count("{") == query.count("}"), query
    ids = [panel["id"] for panel in board["panels"]]
    assert len(asked) > 25 and len(set(ids)) == len(ids)


def test_cached_blocks_are_no_leak(server: Any) -> None:
    """C12: after distinct prompts nothing is live; cached, free and live make up the pool."""
    server.wait_idle()
    before = server.metrics()
    for number in range(12):
        body = chat("0")
        body["messages"].insert(0, {"role": "system", "content": f"{number} is the number of this prompt " * 3})
        server.post("/v1/chat/completions", body)
    server.wait_idle()
    now = server.metrics()
    parts = [now[f"bireme:kv_blocks_{kind}"] for kind in ("live", "cached", "free")]
    assert parts[0] == 0 and sum(parts) == now["bireme:kv_blocks"]
    assert parts[1] > before["bireme:kv_blocks_cached"]
    assert now["vllm:kv_cache_usage_perc"] == 0
    assert now["vllm:request_queue_time_seconds_count"] - before["vllm:request_queue_time_seconds_count"] == 12
    cached = now["vllm:prefix_cache_hits_total"] - before["vllm:prefix_cache_hits_total"]
    asked = now["vllm:prefix_cache_queries_total"] - before["vllm:prefix_cache_queries_total"]
    assert asked == now["vllm:prompt_tokens_total"] - before["vllm:prompt_tokens_total"]
    assert 0 < cached < asked


def test_statistics_line_while_busy(hooked: Any) -> None:
    hooked.post("/v1/chat/completions", chat("6", max_tokens=200, ignore_eos=True))
    hooked.post("/v1/chat/completions", chat("Z", max_tokens=2))
    assert re.search(r"running \d+, waiting 0, in [\d.]+ tok/s, out [\d.]+ tok/s, KV [\d.]+%, prefix hits", hooked.log)
