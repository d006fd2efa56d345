"""Where and at which size is measured, how a call is timed, and what one measurement is."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from benchmarks.gpu_bench.cards import Card
from engine.kernels.attention import AttentionBackend, AttentionShape

LLAMA_8B = AttentionShape(num_heads=32, num_kv_heads=8, head_dim=128, page_size=16, scale=128**-0.5)
TINY = AttentionShape(num_heads=4, num_kv_heads=2, head_dim=64, page_size=16, scale=0.125)

COMPILE_S = 1.0
"""Of one kernel, lowering and first call included: gpu-compile takes 0.3 to 1.5 s for each on two slow cores."""
EFFICIENCY = 0.4
"""Share of a card's own rate that an estimate expects."""
LAUNCH_S = 50e-6

type Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Measurement:
    """`run` makes what it needs and lets go of it."""

    estimate_s: float
    run: Callable[[], Row]


@dataclass(frozen=True, slots=True)
class Bench:
    """`card` is None where its data sheet is not known. `tiny`: shapes for Pallas's interpreter, timed once, to see that it works."""

    backends: tuple[AttentionBackend, ...]
    card: Card | None
    tiny: bool = False
    memory_bytes: int = 0

    @property
    def shape(self) -> AttentionShape:
        return TINY if self.tiny else LLAMA_8B

    def bandwidth_percent(self, bytes_s: float) -> float | None:
        return None if self.card is None else round(100 * bytes_s / self.card.bandwidth_bytes_s, 1)

    def flops_percent(self, flops: float) -> float | None:
        return None if self.card is None else round(100 * flops / self.card.bf16_flops, 1)

    def estimate_s(self, call_bytes: float = 0.0, call_flops: float = 0.0, calls: int = 20, compile_s: float = COMPILE_S) -> float:
        """Of a measurement: its compile, and all calls that `seconds` makes. Nothing is known of a card that has no data sheet."""
        if self.card is None:
            return compile_s
        rate_s = max(call_bytes / self.card.bandwidth_bytes_s, call_flops / self.card.bf16_flops) / EFFICIENCY
        return compile_s + (ROUNDS * calls + 1) * max(rate_s, LAUNCH_S)

    def seconds(self, call: Callable[[int], Any], calls: int = 20) -> float:
        """Of one call: the best of some rounds of calls in a row, so that launches overlap as they do in the engine."""
        calls, rounds = (1, 1) if self.tiny else (calls, ROUNDS)
        last = jax.block_until_ready(call(0))
        best = float("inf")
        for _ in range(rounds):
            started_s = time.perf_counter()
            for number in range(calls):
                last = call(number)
            jax.block_until_ready(last)
            best = min(best, (time.perf_counter() - started_s) / calls)
        return best

    def seconds_alone(self, call: Callable[[int], jax.Array], calls: int = 20) -> float:
        """Of one call whose answer is on the host before the next one starts: launch, kernels, copy, and what lies between them."""
        np.asarray(call(0))
        best = float("inf")
        for number in range(1 if self.tiny else ROUNDS * calls):
            started_s = time.perf_counter()
            np.asarray(call(number))
            best = min(best, time.perf_counter() - started_s)
        return best


ROUNDS = 3
