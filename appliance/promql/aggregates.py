"""Aggregations: many series to one a group, or to the largest of each group."""

import math
from collections.abc import Callable, Sequence

import promql_parser as promql

from appliance.promql.errors import Unsupported
from appliance.promql.values import NAME, Labels, Scalar, Series, Vector, kept, key_of, without

type Fold = Callable[[Sequence[float]], float]

FOLDS: dict[str, Fold] = {
    "sum": sum,
    "avg": lambda values: sum(values) / len(values),
    "min": lambda values: min((value for value in values if value == value), default=math.nan),
    "max": lambda values: max((value for value in values if value == value), default=math.nan),
    "count": len,
}
"""Numbers win over what is none in `min` and `max`, as in Prometheus."""
RANKS = {"topk": -1.0, "bottomk": 1.0}
"""By what a value is multiplied so that the wanted ones come first."""


def group_of(modifier: promql.AggModifier | None) -> Callable[[Labels], dict[str, str]]:
    """The labels of the group that a series belongs to."""
    if modifier is None:
        return lambda labels: {}
    names = tuple(modifier.labels)
    if modifier.type == promql.AggModifierType.By:
        return lambda labels: kept(labels, names)
    return lambda labels: without(labels, NAME, *names)


def aggregated(operator: str, group: Callable[[Labels], dict[str, str]], vector: Vector, parameter: Scalar | None) -> Vector:
    """Raises `Unsupported` for an operator that is not in the tables above."""
    groups: dict[frozenset[tuple[str, str]], Vector] = {}
    for series in vector:
        groups.setdefault(key_of(group(series.labels)), []).append(series)
    if operator in RANKS and parameter is not None:
        return [series for members in groups.values() for series in _first(RANKS[operator], members, parameter)]
    if operator not in FOLDS:
        raise Unsupported(f"the aggregation {operator!r}")
    fold = FOLDS[operator]
    return [Series(dict(labels), _folded(fold, members)) for labels, members in groups.items()]


def _folded(fold: Fold, members: Vector) -> list[float | None]:
    rows = zip(*(series.values for series in members), strict=True)
    return [fold(present) if (present := [value for value in row if value is not None]) else None for row in rows]


def _first(sign: float, members: Vector, parameter: Scalar) -> Vector:
    """The members with their values where they are among the first, and none elsewhere."""
    chosen: list[list[float | None]] = [[None] * len(parameter.values) for _ in members]
    for place, limit in enumerate(parameter.values):
        present = [(value, index) for index, series in enumerate(members) if (value := series.values[place]) is not None]
        present.sort(key=lambda each: (each[0] != each[0], sign * each[0]))
        for value, index in present[: max(0, int(limit))]:
            chosen[index][place] = value
    return [Series(series.labels, values) for series, values in zip(members, chosen, strict=True)]
