"""Pieces summed up by name and by whose work they were."""

from collections.abc import Callable, Sequence

import msgspec

from appliance.telemetry.explain.pieces import Piece

type Shown = Callable[[str | None], str | None]
"""The name that whoever asks may read in place of a tenant's."""


class Part(msgspec.Struct, frozen=True):
    """Seconds of the request's life. All parts add up to `total_s`."""

    name: str
    seconds: float
    tenant: str | None
    """Whose work took them; null: the request's own, or nobody's."""


def seconds(duration_ns: float) -> float:
    """Microseconds are enough for people."""
    return round(duration_ns / 1e9, 6)


def parts_of(pieces: Sequence[Piece], shown: Shown = lambda cause: cause) -> list[Part]:
    """Sums by name and cause, in the order in which they first appear; own work before others' in each."""
    sums: dict[tuple[str, str | None], int] = {}
    for piece in pieces:
        for cause, duration_ns in sorted(piece.causes.items(), key=lambda item: (item[0] is not None, -item[1])):
            if duration_ns:
                key = (piece.name, shown(cause))
                sums[key] = sums.get(key, 0) + duration_ns
    return [Part(name, seconds(duration_ns), cause) for (name, cause), duration_ns in sums.items()]
