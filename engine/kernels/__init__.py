"""Kernels: pure functions, each with a twin in `reference.py`; the caller sees every argument, the scale too."""
