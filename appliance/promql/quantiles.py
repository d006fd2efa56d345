"""Quantiles of classic histograms, interpolated within a bucket as Prometheus does it.

Source: `bucketQuantile` of prometheus/promql/quantile.go.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from appliance.promql.values import NAME, Column, Scalar, Series, Vector, key_of, without


def histogram_quantile(quantile: Scalar, buckets: Vector) -> Vector:
    """A series for each set of buckets (series that differ in `le` alone)."""
    sets: dict[frozenset[tuple[str, str]], list[tuple[float, Series]]] = {}
    for series in buckets:
        bound = _bound(series.labels.get("le", ""))
        if bound is not None:
            sets.setdefault(key_of(without(series.labels, "le", NAME)), []).append((bound, series))
    return [Series(dict(labels), _column(quantile.values, sorted(found, key=lambda each: each[0]))) for labels, found in sets.items()]


def _bound(le: str) -> float | None:
    try:
        return float(le)
    except ValueError:
        return None


def _column(quantiles: Sequence[float], buckets: Sequence[tuple[float, Series]]) -> Column:
    bounds = [bound for bound, _ in buckets]
    rows = zip(*(series.values for _, series in buckets), strict=True)
    return [_at(q, bounds, row) for q, row in zip(quantiles, rows, strict=True)]


def _at(q: float, bounds: Sequence[float], row: Sequence[float | None]) -> float | None:
    if None in row:
        pairs = [(bound, count) for bound, count in zip(bounds, row, strict=True) if count is not None]
        if not pairs:
            return None
        bounds, counts = [bound for bound, _ in pairs], [count for _, count in pairs]
    else:
        counts = [count for count in row if count is not None]
    return quantile_of(q, bounds, counts)


def quantile_of(q: float, bounds: Sequence[float], counts: Sequence[float]) -> float:
    """Of cumulated counts by ascending upper bound, the last one infinite; not a number where there is nothing to look at."""
    if not 0 <= q <= 1:
        return math.nan if math.isnan(q) else math.copysign(math.inf, q - 0.5)
    if len(bounds) < 2 or bounds[-1] != math.inf:
        return math.nan
    rising = list(accumulate(counts, max))  # sums of rates may fall by a rounding
    if not rising[-1] > 0:
        return math.nan
    rank = q * rising[-1]
    place = bisect_left(rising, rank, hi=len(rising) - 1)
    if place == len(bounds) - 1:
        return bounds[-2]
    if place == 0 and bounds[0] <= 0:
        return bounds[0]
    begin, before = (bounds[place - 1], rising[place - 1]) if place else (0.0, 0.0)
    inside = rising[place] - before
    return begin + (bounds[place] - begin) * (rank - before) / inside if inside else math.nan
