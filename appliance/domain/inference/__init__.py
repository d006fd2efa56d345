"""Inference: the routes that generate, from request body to the last event."""
