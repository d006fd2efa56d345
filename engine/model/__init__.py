"""The network: configuration, weights, checkpoints, and pure functions over them."""
