"""A prediction's spans follow from its metrics, are few for a long answer, and have no text."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from serving import tracing
from serving.tracing.spans import MAX_EVENTS, PredictionSpans
from serving.types import CHOSEN, RequestMetrics, TokenPass

TRACE = "0af7651916cd43dd8448eb211c80319c"
CONTEXT = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}


@pytest.fixture
def exporter():
    return InMemorySpanExporter()


@pytest.fixture
def tracer(exporter):
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider.get_tracer("test")


def metrics_of(passes, **changes) -> RequestMetrics:
    values = {"model_passes": len(passes), "cached_token_count": 3, "time_to_first_token": 0.5, "total_time": 2.0}
    return RequestMetrics(**{"input_token_count": 7, "output_token_count": 9, **values, **changes, "passes": passes})


def a_pass(at: float) -> TokenPass:
    return TokenPass(at, ("model", CHOSEN), ("model", "model", "forced"), 1, seconds=0.01, num_rows=4)


def spans_of(tracer, exporter, metrics, context=CONTEXT) -> dict:
    with PredictionSpans(tracer, context) as trace:
        trace.prepared()
        trace.generated(metrics)
    return {span.name: span for span in exporter.get_finished_spans()}


def test_phases_are_below_the_caller_s_span_and_follow_each_other(tracer, exporter):
    passes = (a_pass(0.5), a_pass(1.0), a_pass(2.0))
    spans = spans_of(tracer, exporter, metrics_of(passes, queue_time=0.2))
    whole = spans.pop("predict")
    assert format(whole.context.trace_id, "032x") == TRACE
    assert whole.parent.span_id == int("b7ad6b7169203331", 16)
    assert {span.parent.span_id for span in spans.values()} == {whole.context.span_id}
    durations = {name: (span.end_time - span.start_time) / 1e9 for name, span in spans.items() if name != "prepare"}
    assert durations == pytest.approx({"queue": 0.2, "prefill": 0.3, "decode": 1.5})
    assert spans["prefill"].attributes["engine.cached_tokens"] == 3
    assert [len(spans[name].events) for name in ("prefill", "decode")] == [1, 2]
    step = {"steps": 1, "rows": 4, "drafts": 3, "accepted": 1, "tokens": 2, "seconds": 0.01}
    assert dict(spans["decode"].events[-1].attributes) == step


def test_an_answer_of_many_steps_has_few_events_and_none_is_lost(tracer, exporter):
    passes = tuple(a_pass(0.5 + number / 10_000) for number in range(10_001))
    events = spans_of(tracer, exporter, metrics_of(passes))["decode"].events
    assert len(events) <= MAX_EVENTS
    assert sum(event.attributes["steps"] for event in events) == 10_000
    assert sum(event.attributes["drafts"] for event in events) == 30_000


def test_an_engine_that_knows_no_passes_has_phases_without_steps(tracer, exporter):
    spans = spans_of(tracer, exporter, metrics_of(()))
    assert set(spans) == {"predict", "prepare", "prefill", "decode"}
    assert not spans["decode"].events


@pytest.mark.parametrize("context", [{}, {"traceparent": "nonsense"}])
def test_without_a_caller_s_trace_a_prediction_begins_one(tracer, exporter, context):
    assert spans_of(tracer, exporter, metrics_of(()), context)["predict"].parent is None


def test_an_error_is_named_but_not_repeated(tracer, exporter):
    with pytest.raises(ValueError), PredictionSpans(tracer, CONTEXT):
        raise ValueError("a secret question")
    [span] = exporter.get_finished_spans()
    assert span.attributes["error.type"] == "ValueError"
    assert "secret" not in span.to_json()


def test_nothing_is_recorded_without_an_endpoint_or_without_opentelemetry(monkeypatch, capsys):
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    assert tracing.open_tracing() is tracing.begin_nothing
    with tracing.begin_nothing(CONTEXT) as trace:
        trace.prepared()
        trace.generated(metrics_of(()))
    assert not capsys.readouterr().err
