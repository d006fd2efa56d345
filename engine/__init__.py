"""The JAX engine: one process per replica, token ids in, token ids out."""
