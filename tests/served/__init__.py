"""Whole processes of the control plane with a fake engine, on databases that are killed and locked under them."""
