"""The control plane with its fake engine, as the inference tests run it."""

from tests.inference.conftest import card, house, model, shared_house

__all__ = ["card", "house", "model", "shared_house"]
