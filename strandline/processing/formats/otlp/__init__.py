"""Requests with metrics of OpenTelemetry."""
