"""What the gateway counts and measures, for Prometheus."""
