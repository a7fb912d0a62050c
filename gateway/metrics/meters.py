"""The gateway's counters, gauges and histograms. Names are vLLM's where they mean the same, else gateway_…."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

# Upper bounds in seconds; as vLLM's, so that its dashboards and alerts can be used.
_FIRST: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
_BETWEEN: Final = (*(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80),)
_WHOLE: Final = (*(0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680),)
_ANSWER: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_MAX_TYPES: Final = 40  # distinct values of a label that a Cog server writes; further ones are `other`


class Meters:
    """All figures of one gateway, in a registry of its own: two gateways in one process do not mix.

    Args:
        model: the value of the label model_name.
    """

    def __init__(self, model: str) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._model = model
        self._types: set[str] = set()
        self.prompt_tokens = self._counter("vllm:prompt_tokens", "Tokens of prompts.")
        self.generation_tokens = self._counter("vllm:generation_tokens", "Tokens of answers.")
        self.cached_tokens = self._counter("vllm:prefix_cache_hits", "Tokens of prompts whose KV was reused.")
        self.queried_tokens = self._counter("vllm:prefix_cache_queries", "Tokens of prompts that were looked up.")
        self.cache_hits = self._counter("gateway_cache_hits", "Predictions that the cache of answers answered.")
        self.cache_misses = self._counter(
            "gateway_cache_misses", "Predictions that the cache could answer, but for the first time."
        )
        self.cache_bytes = self._gauge(
            "gateway_cache_bytes", "Size of the predictions whose answers the cache can find, at most."
        )
        self.draft_tokens = self._counter("vllm:spec_decode_num_draft_tokens", "Tokens that were drafted.")
        self.accepted_tokens = self._counter("vllm:spec_decode_num_accepted_tokens", "Drafted tokens that were right.")
        self.passes = self._counter("gateway_model_passes", "Passes through the model, summed over predictions.")
        self.first_token = self._histogram(
            "vllm:time_to_first_token_seconds", "From the creation of a prediction to its first output.", _FIRST
        )
        self.inter_token = self._histogram(
            "vllm:inter_token_latency_seconds", "Between two pieces of a prediction's output.", _BETWEEN
        )
        self.whole = self._histogram(
            "vllm:e2e_request_latency_seconds", "From the creation of a prediction to its success.", _WHOLE
        )
        self.queue = self._histogram(
            "gateway_queue_time_seconds", "From the creation of a prediction to its start on a Cog server.", _FIRST
        )
        self.kv_usage = self._gauge(
            "vllm:kv_cache_usage_perc", "Share of KV blocks in use, 1 is all, when a prediction last ended."
        )
        self.running = self._gauge("vllm:num_requests_running", "Predictions on Cog servers.")
        self.waiting = self._gauge("vllm:num_requests_waiting", "Predictions that wait for a Cog server.")
        self._success = self._labelled("vllm:request_success", "Predictions that succeeded.", "finished_reason")
        self._ended = self._labelled("gateway_predictions", "Predictions that ended.", "status")
        self._failures = self._labelled("gateway_prediction_failures", "Predictions that failed.", "type")
        self._drafted = self._labelled("gateway_draft_tokens", "Tokens that were drafted, by where from.", "kind")
        self._accepted = self._labelled("gateway_accepted_tokens", "Drafted tokens that were right.", "kind")
        self._shadow = self._labelled("gateway_shadow", "Predictions that a candidate was to answer too.", "outcome")
        names = ("api", "method", "status")
        self._requests = Counter("gateway_requests", "HTTP requests.", names, registry=self.registry)
        self._errors = Counter("gateway_errors", "Requests that got an error.", ("api", "type"), registry=self.registry)
        self._answer = Histogram(
            "gateway_response_start_seconds",
            "From the arrival of a request to the start of its response.",
            ("api",),
            registry=self.registry,
            buckets=_ANSWER,
        )
        self._healthy = Gauge("gateway_upstream_healthy", "1 if it answers.", ("upstream",), registry=self.registry)
        self._outstanding = Gauge(
            "gateway_upstream_outstanding", "Predictions on this server.", ("upstream",), registry=self.registry
        )

    def watch_server(self, name: str, is_healthy: Callable[[], float], outstanding: Callable[[], float]) -> None:
        """Show a Cog server; the functions are called at each scrape."""
        self._healthy.labels(name).set_function(is_healthy)
        self._outstanding.labels(name).set_function(outstanding)

    def forget_servers(self) -> None:
        """Show no Cog server, until they are watched again."""
        self._healthy.clear()
        self._outstanding.clear()

    def count_request(self, *, api: str, method: str, status: int, error: str | None, seconds: float) -> None:
        """Count one HTTP request, whose response began after `seconds`."""
        self._requests.labels(api, method, str(status)).inc()
        self._answer.labels(api).observe(seconds)
        if error is not None:
            self._errors.labels(api, error).inc()

    def count_end(self, status: str) -> None:
        """Count a prediction that ended."""
        self._ended.labels(self._model, status).inc()

    def count_success(self, finished_reason: str) -> None:
        """Count a prediction that succeeded, by why it ended: stop, length, or unknown."""
        self._success.labels(self._model, self._bounded(finished_reason)).inc()

    def count_failure(self, kind: str) -> None:
        """Count a prediction that failed, by the name of its error."""
        self._failures.labels(self._model, self._bounded(kind)).inc()

    def count_shadow(self, outcome: str) -> None:
        """Count a prediction that a candidate was to answer too: same, different, failed or dropped."""
        self._shadow.labels(self._model, outcome).inc()

    def count_drafts(self, kind: str, *, drafted: float, accepted: float) -> None:
        """Count the drafts of a prediction that came from one of the drafter's sources: forced, model, context, …"""
        label = self._bounded(kind)
        self._drafted.labels(self._model, label).inc(drafted)
        self._accepted.labels(self._model, label).inc(accepted)

    def _bounded(self, value: str) -> str:
        """A value for a label that a Cog server chose. Each new one costs memory for ever; their number is limited."""
        if value not in self._types and len(self._types) >= _MAX_TYPES:
            return "other"
        self._types.add(value[:60])
        return value[:60]

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, ("model_name",), registry=self.registry).labels(self._model)

    def _labelled(self, name: str, text: str, label: str) -> Counter:
        return Counter(name, text, ("model_name", label), registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, ("model_name",), registry=self.registry).labels(self._model)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, ("model_name",), registry=self.registry, buckets=buckets).labels(self._model)
