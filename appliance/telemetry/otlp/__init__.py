"""Telemetry that is sent: OTLP over HTTP, messages of opentelemetry-proto, no SDK."""
