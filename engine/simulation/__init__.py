"""Traces through the scheduler under a virtual clock: what `fairlane simulate` runs. No jax, no numpy, no device."""
