"""Twins of two traces for machines that lack them: seeded, with the same rate, burstiness, tenants and lengths, and no one's data.

The numbers are quantiles of the public traces (VTC's arena traffic, OSDI 2024; Azure's 2023 conversation traffic, Splitwise, ISCA 2024).
"""

import math
import random
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from engine.simulation.trace import TraceRow

type Quantiles = tuple[tuple[float, float], ...]
"""(share, value), rising; between two of them values are drawn evenly on a logarithmic scale."""


@dataclass(frozen=True, slots=True)
class Twin:
    """What is drawn."""

    requests_per_s: float
    num_tenants: int
    """0: the trace knows no tenants."""
    tenant_exponent: float
    """The tenant of rank r sends 1 / r^exponent."""
    prompt_tokens: Quantiles
    output_tokens: Quantiles
    duration_s: float


TWINS = {
    "arena27": Twin(
        requests_per_s=2.5,
        num_tenants=27,
        tenant_exponent=0.9,
        prompt_tokens=((0.0, 2), (0.1, 5), (0.25, 13), (0.5, 40), (0.75, 161), (0.9, 432), (0.99, 902), (1.0, 1021)),
        output_tokens=((0.0, 2), (0.1, 17), (0.25, 62), (0.5, 211), (0.75, 457), (0.9, 513), (0.99, 785), (1.0, 977)),
        duration_s=600.0,
    ),
    "azure": Twin(
        requests_per_s=5.53,
        num_tenants=0,
        tenant_exponent=1.0,
        prompt_tokens=((0.0, 2), (0.1, 207), (0.25, 396), (0.5, 1020), (0.75, 1189), (0.9, 2734), (0.99, 4142), (1.0, 14050)),
        output_tokens=((0.0, 7), (0.1, 54), (0.25, 85), (0.5, 129), (0.75, 395), (0.9, 424), (0.99, 601), (1.0, 1000)),
        duration_s=3600.0,
    ),
}


def synthetic_rows(twin: Twin, num_requests: int, seed: int) -> Iterator[TraceRow]:
    """`num_requests` requests with exponential gaps; 0 takes as many as the trace's own duration holds."""
    rng = random.Random(seed)
    count = num_requests or round(twin.requests_per_s * twin.duration_s)
    tenants = ranked_tenants(twin.num_tenants)
    weights = tenant_weights(twin.num_tenants, twin.tenant_exponent)
    now_s = 0.0
    for _ in range(count):
        tenant = rng.choices(tenants, cum_weights=weights)[0] if tenants else ""
        yield TraceRow(now_s, tenant, _draw(rng, twin.prompt_tokens), _draw(rng, twin.output_tokens))
        now_s += rng.expovariate(twin.requests_per_s)


def ranked_tenants(count: int) -> list[str]:
    """`client00` sends most."""
    return [f"client{rank:02}" for rank in range(count)]


def tenant_weights(count: int, exponent: float) -> list[float]:
    """Cumulative."""
    total, sums = 0.0, []
    for rank in range(1, count + 1):
        total += rank**-exponent
        sums.append(total)
    return sums


def _draw(rng: random.Random, quantiles: Quantiles) -> int:
    share = rng.random()
    index = min(len(quantiles) - 2, bisect_right(quantiles, share, key=lambda pair: pair[0]) - 1)
    (low_share, low), (high_share, high) = quantiles[index], quantiles[index + 1]
    part = (share - low_share) / (high_share - low_share)
    return max(1, round(math.exp(math.log(low) + part * (math.log(high) - math.log(low)))))
