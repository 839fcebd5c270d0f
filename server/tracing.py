"""OpenTelemetry traces (the extra ``bireme[otel]``): a span per prompt, its queue, prefill and decode inside it.

Names are those of the semantic conventions for generative AI. On where an endpoint is configured by OpenTelemetry's own
variables; its SDK is not imported otherwise.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..core.request import FinishReason, Request
from .record import RequestRecord

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

logger = logging.getLogger("bireme.server")

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
#: Sampling parameters told, by the conventions' names.
_PARAMETERS = ("max_tokens", "temperature", "top_p", "top_k", "seed", "presence_penalty", "frequency_penalty")


class Tracer:
    """Makes spans when requests are over; while they run it costs nothing."""

    def __init__(self, model: str, processor: SpanProcessor, environment: Mapping[str, str] = os.environ) -> None:
        from opentelemetry.propagate import extract
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider

        named = environment.get("OTEL_SERVICE_NAME") or "service.name=" in environment.get(
            "OTEL_RESOURCE_ATTRIBUTES", ""
        )
        attributes = {"service.version": __version__} | ({} if named else {"service.name": "bireme"})
        self._model = model
        self._provider = TracerProvider(resource=Resource.create(attributes), shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("bireme", __version__)
        self._extract = extract

    def follow(self, operation: str, request: Request, headers: Mapping[str, str]) -> Callable[[RequestRecord], None]:
        """What to call when the request is over. ``operation`` is the conventions' ``chat`` or ``text_completion``;
        ``headers`` may hold the caller's ``traceparent``."""
        parent = self._extract(headers) if "traceparent" in headers else None
        return lambda record: self._tell(operation, request, record, parent)

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()

    def _tell(self, operation: str, request: Request, record: RequestRecord, parent: Any) -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        assert record.ended_at is not None and record.reason is not None
        shift = time.time() - time.monotonic()

        def at(moment: float) -> int:
            return int((moment + shift) * 1e9)

        span = self._tracer.start_span(
            f"{operation} {self._model}",
            parent,
            SpanKind.SERVER,
            self._attributes(operation, request, record),
            start_time=at(record.arrived),
        )
        if record.reason is FinishReason.ERROR:
            span.set_status(Status(StatusCode.ERROR))
            span.set_attribute("error.type", "engine_error")
        inside = set_span_in_context(span)
        for name, start, end in _phases(record):
            self._tracer.start_span(name, inside, start_time=at(start)).end(at(end))
        span.end(at(record.ended_at))

    def _attributes(self, operation: str, request: Request, record: RequestRecord) -> dict[str, Any]:
        params = request.params
        reasons = [reason.value for reason in record.reasons] or [str(record.reason)]
        found: dict[str, Any] = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "bireme",
            "gen_ai.request.model": self._model,
            "gen_ai.response.model": self._model,
            "gen_ai.response.finish_reasons": reasons,
            "gen_ai.usage.input_tokens": record.prompt_tokens,
            "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
            "gen_ai.usage.output_tokens": record.num_tokens,
            "bireme.request_id": record.request_id,
            "bireme.user": record.caller.label,
            "bireme.end": str(record.reason),
        }
        if record.ttft is not None:
            found["gen_ai.response.time_to_first_chunk"] = record.ttft
        for name in _PARAMETERS:
            value = getattr(params, name)
            if value is not None:
                found[f"gen_ai.request.{name}"] = value
        if params.n > 1:
            found["gen_ai.request.choice.count"] = params.n
        return found


def _phases(record: RequestRecord) -> list[tuple[str, float, float]]:
    """(name, start, end) of what the request went through."""
    assert record.ended_at is not None
    if record.queue_seconds is None:
        return [("queue", record.arrived, record.ended_at)]
    begun = record.arrived + record.queue_seconds
    if record.first_at is None:
        return [("queue", record.arrived, begun), ("prefill", begun, record.ended_at)]
    begun = min(begun, record.first_at)
    return [
        ("queue", record.arrived, begun),
        ("prefill", begun, record.first_at),
        ("decode", record.first_at, record.last_at),
    ]


def start_tracing(model: str, environment: Mapping[str, str] = os.environ) -> Tracer | None:
    """A tracer that sends to the configured endpoint; None where there is none, or the extra is not installed."""
    if not any(environment.get(name) for name in ENDPOINTS):
        return None
    off = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if off or environment.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp":
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        logger.warning("traces are asked for by an OTEL_ variable, but need 'pip install bireme[otel]'")
        return None
    return Tracer(model, BatchSpanProcessor(OTLPSpanExporter()), environment)
