"""The traces of predictions, for OpenTelemetry."""
