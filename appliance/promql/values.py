"""What expressions evaluate to: series on a grid, or one number a time."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from appliance.promql.errors import Ambiguous

NAME = "__name__"

type Labels = Mapping[str, str]
"""A label that is empty is one that is not there."""
type Column = Sequence[float | None]
"""A value for each time of the grid; None: there is none."""


@dataclass(frozen=True, slots=True)
class Series:
    labels: Labels
    values: Column


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number for each time of the grid."""

    values: Sequence[float]


type Vector = list[Series]


def key_of(labels: Labels) -> frozenset[tuple[str, str]]:
    """What makes two label sets the same."""
    return frozenset(labels.items())


def kept(labels: Labels, names: Iterable[str]) -> dict[str, str]:
    """Of these labels, those that are there."""
    return {name: labels[name] for name in names if labels.get(name)}


def without(labels: Labels, *names: str) -> dict[str, str]:
    """All labels but these."""
    return {name: value for name, value in labels.items() if name not in names}


def merged(vector: Iterable[Series]) -> Vector:
    """One series a label set: those with the same one take turns. Raises `Ambiguous` where two have a value at one time."""
    found: dict[frozenset[tuple[str, str]], Series] = {}
    for series in vector:
        key = key_of(series.labels)
        before = found.get(key)
        found[key] = series if before is None else Series(series.labels, united(before.values, series.values, series.labels))
    return [series for series in found.values() if any(value is not None for value in series.values)]


def united(one: Column, other: Column, labels: Labels) -> Column:
    """Two columns that take turns. Raises `Ambiguous` where both have a value."""
    if any(a is not None and b is not None for a, b in zip(one, other, strict=True)):
        raise Ambiguous(f"two series have the labels {dict(labels)} at one time")
    return [b if a is None else a for a, b in zip(one, other, strict=True)]
