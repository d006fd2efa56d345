"""Deciding what a step does: pure Python, no jax, no numpy, no clock, no I/O."""
