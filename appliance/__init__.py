"""The control plane: HTTP, identity, limits, text, metrics and data. Free of jax and numpy."""
