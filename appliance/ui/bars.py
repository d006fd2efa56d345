"""Stacked bars: parts of a whole, drawn as SVG, as inline styles are not allowed."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Slice:
    """One part. `x` and `width` are percent of the bar; `kind` is the class that colours it."""

    label: str
    kind: str
    value: float
    x: float
    width: float

    @property
    def ratio(self) -> float:
        return self.width / 100


def slices(parts: Iterable[tuple[str, str, float]]) -> list[Slice]:
    """Label, kind and value of each part, in order; parts of nothing have no width."""
    given = [(label, kind, max(0.0, float(value))) for label, kind, value in parts]
    total = sum(value for *_, value in given)
    found: list[Slice] = []
    x = 0.0
    for label, kind, value in given:
        width = value / total * 100 if total else 0.0
        found.append(Slice(label, kind, value, round(x, 3), round(width, 3)))
        x += width
    return found
