"""What the data sheets say of cards: what a measurement is a share of, and how long it should take at most."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Card:
    """Dense bf16 FLOP/s and bytes/s of memory."""

    name: str
    capability: tuple[int, int]
    bandwidth_bytes_s: float
    bf16_flops: float


CARDS = {
    card.name: card
    for card in (
        Card("NVIDIA H200", (9, 0), 4.8e12, 989e12),
        Card("NVIDIA H100 80GB HBM3", (9, 0), 3.35e12, 989e12),
        Card("NVIDIA A100-SXM4-80GB", (8, 0), 2.039e12, 312e12),
        Card("NVIDIA B200", (10, 0), 7.67e12, 2_250e12),
    )
}
"""By JAX's `device_kind`. A card that is not here gets no share."""
