"""What the gateway counts and measures, for Prometheus."""

from gateway.metrics.metrics_page import METRICS

__all__ = ["METRICS"]
