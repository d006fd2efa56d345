"""System: health, readiness, metrics, API description."""
