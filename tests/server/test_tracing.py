"""OpenTelemetry: spans of real requests, kept in memory; nothing imported where no endpoint is set."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from bireme.core.request import FinishReason, Request, SamplingParams
from bireme.server.metrics import Metrics
from bireme.server.record import RequestRecord
from bireme.server.tracing import Tracer, start_tracing

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def traced(record_it: Any, headers: dict[str, str], **params: Any) -> Any:
    exporter = InMemorySpanExporter()
    tracer = Tracer("tiny", SimpleSpanProcessor(exporter), {})
    record = Metrics("tiny").record(40, "id-1")
    request = Request("id-1", (1,) * 40, SamplingParams(**params))
    record.on_end = tracer.follow("chat", request, headers)
    record.submitted()
    record_it(record)
    spans = {span.name: span for span in exporter.get_finished_spans()}
    tracer.close()
    return spans


def test_a_request_becomes_a_span_with_its_phases() -> None:
    def life(record: RequestRecord) -> None:
        record.queued(0.0)
        record.cached(32)
        record.tokens(1)
        record.tokens(4)
        record.end([FinishReason.STOP])

    spans = traced(life, {"traceparent": PARENT}, temperature=0.5, max_tokens=9, seed=7)
    root = spans.pop("chat tiny")
    assert (
        f"{root.context.trace_id:032x}" == PARENT.split("-")[1]
        and f"{root.parent.span_id:016x}" == PARENT.split("-")[2]
    )
    told = dict(root.attributes)
    assert told["gen_ai.operation.name"] == "chat" and told["gen_ai.request.model"] == "tiny"
    assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.output_tokens"]) == (40, 5)
    assert told["gen_ai.usage.cache_read.input_tokens"] == 32
    assert told["gen_ai.response.finish_reasons"] == ("stop",)
    assert (told["gen_ai.request.temperature"], told["gen_ai.request.max_tokens"]) == (0.5, 9)
    assert told["gen_ai.request.seed"] == 7 and told["bireme.user"] == "other"
    assert root.resource.attributes["service.name"] == "bireme"
    assert set(spans) == {"queue", "prefill", "decode"}
    ends = [root.start_time]
    for name in ("queue", "prefill", "decode"):
        span = spans[name]
        assert span.parent.span_id == root.context.span_id
        assert abs(span.start_time - ends[-1]) <= 1000, "phases follow each other"
        ends.append(span.end_time)
    assert ends == sorted(ends) and ends[-1] <= root.end_time


def test_requests_that_never_began_or_failed() -> None:
    spans = traced(lambda record: record.end([None]), {})
    assert set(spans) == {"chat tiny", "queue"} and spans["chat tiny"].parent is None
    assert spans["chat tiny"].attributes["gen_ai.response.finish_reasons"] == ("abort",)

    def fails(record: RequestRecord) -> None:
        record.queued(0.0)
        record.failed(500)
        record.end([None])

    spans = traced(fails, {})
    assert not spans["chat tiny"].status.is_ok and set(spans) == {"chat tiny", "queue", "prefill"}


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"},
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"},
    ],
)
def test_off_unless_asked_for(environment: dict[str, str]) -> None:
    assert start_tracing("tiny", environment) is None


def test_nothing_is_imported_while_off() -> None:
    """(Of the API FastAPI itself imports something, where it is installed.)"""
    parts = "('opentelemetry.sdk', 'opentelemetry.exporter', 'opentelemetry.proto')"
    code = f"import sys, bireme.server.run; print([m for m in sys.modules if m.startswith({parts})])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"


def test_a_real_server_sends_what_it_did(start_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """To a collector that is a plain HTTP server here."""
    import http.server
    import threading

    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    received: list[bytes] = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    collector = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_address[1]}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    server = start_server("--device", "sim")
    server.wait_serving()
    body = {"prompt": "secret words", "max_tokens": 4, "ignore_eos": True}
    assert server.post("/v1/completions", body, traceparent=PARENT).status_code == 200
    assert server.stop() == 0, "the last spans go out at the end"
    collector.shutdown()
    collector.server_close()
    message = ExportTraceServiceRequest.FromString(b"".join(received))
    spans = [span for one in message.resource_spans for scope in one.scope_spans for span in scope.spans]
    assert {span.name for span in spans} == {"text_completion scripted", "queue", "prefill", "decode"}
    assert all(span.trace_id.hex() == PARENT.split("-")[1] for span in spans)
    assert b"secret" not in b"".join(received)
