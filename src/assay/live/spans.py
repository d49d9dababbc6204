"""OpenTelemetry spans, one a request, where a collector is given."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from assay.record.errors import BadInput
from assay.record.extras import missing_module

if TYPE_CHECKING:
    from assay.live.relay import Relay

_LAST = 2.0  # seconds that the last spans may take to a collector that does not answer


class Spans:
    """Exports in a thread of its own, in batches: no request waits for the collector."""

    def __init__(self, endpoint: str) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace import Status, StatusCode
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ModuleNotFoundError as error:
            raise BadInput(missing_module("tracing", error)) from None
        url = endpoint if endpoint.rstrip("/").endswith("/v1/traces") else endpoint.rstrip("/") + "/v1/traces"
        self._provider = TracerProvider(resource=Resource.create({"service.name": "assay-gateway"}))
        self._exporter = OTLPSpanExporter(endpoint=url)
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("assay.live")
        self._propagator = TraceContextTextMapPropagator()
        self._failed = Status(StatusCode.ERROR)
        self._open: dict[int | str, Any] = {}

    def begin(self, relay: Relay) -> None:
        """A request came; its span continues the client's trace, and the engine continues the span."""
        head = relay.exchange.head
        carrier = {
            name: head.fields[name.encode()].decode("latin-1")
            for name in ("traceparent", "tracestate")
            if name.encode() in head.fields
        }
        context = self._propagator.extract(carrier)
        span = self._tracer.start_span(f"{relay.endpoint}", context)
        self._open[relay.request.id] = span
        from opentelemetry.trace import set_span_in_context

        onward: dict[str, str] = {}
        self._propagator.inject(onward, set_span_in_context(span))
        others = [line for line in head.kept if not line[:12].lower().startswith((b"traceparent:", b"tracestate:"))]
        head.kept = [*others, *(f"{name}: {value}".encode("latin-1") for name, value in onward.items())]

    def end(self, relay: Relay) -> None:
        """A request is over."""
        span = self._open.pop(relay.request.id, None)
        if span is None:
            return
        usage = relay.usage
        prompt, output = (usage.prompt, usage.output) if usage else (None, None)
        facts: dict[str, Any] = {
            "http.response.status_code": relay.status, "gen_ai.request.model": relay.request.model,
            "gen_ai.usage.input_tokens": prompt or relay.request.prompt,
            "gen_ai.usage.output_tokens": relay.tokens if output is None else output,
            "assay.engine": relay.engine.name if relay.engine else "", "assay.matched_tokens": relay.matched,
            "assay.tries": relay.tries, "assay.tenant": relay.tenant,
            "assay.request_id": relay.name.decode("latin-1"), "url.path": relay.exchange.head.path.decode("latin-1"),
        }  # fmt: skip
        if relay.error:
            facts["error.type"] = relay.error
            span.set_status(self._failed)
        if relay.first is not None:
            facts["assay.ttft"] = relay.first - relay.arrival
        span.set_attributes(facts)
        span.end()

    def close(self) -> None:
        """Send what is left, if the collector takes it: a gateway stops in time even where that one is down."""
        enough = threading.Timer(_LAST, self._exporter.shutdown)
        enough.daemon = True
        enough.start()
        self._provider.shutdown()
        enough.cancel()
