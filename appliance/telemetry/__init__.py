"""Telemetry: metric families, the step ledger, log lines."""
