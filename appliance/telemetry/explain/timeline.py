"""A request's life as a drawing: what happened in each hundredth of it, and whose work took the time.

Pieces may be thousands, most of them too short to be seen. A life is cut into `NUM_CELLS` cells; each shows what took most of it, and
cells that show the same are one stretch. The exact sums are the explanation's parts.
"""

from collections.abc import Callable, Sequence
from itertools import groupby

import msgspec

from appliance.telemetry.explain.answer import Explanation, explain
from appliance.telemetry.explain.parts import seconds
from appliance.telemetry.explain.pieces import Piece, Recorded, pieces_of
from appliance.telemetry.requests import RequestReport

NUM_CELLS = 250


class Stretch[Label](msgspec.Struct, frozen=True):
    """A part of the drawing. `at_s` from receipt."""

    label: Label
    at_s: float
    seconds: float


class Timeline(msgspec.Struct, frozen=True):
    """What is drawn of a request."""

    explanation: Explanation
    phases: list[Stretch[str]]
    """Names of parts, in order, from receipt to the end."""
    owners: list[Stretch[str | None]]
    """Tenants whose work took the time; None: its own, or nobody's."""


def timeline_of(report: RequestReport, recorded: Recorded, *, is_running: bool = False) -> Timeline:
    """The drawing of a request, of a running one as if it ended now. Tenants are named: it is for administrators."""
    pieces = pieces_of(report, recorded)
    return Timeline(
        explain(report, recorded, is_running=is_running),
        stretches(pieces, lambda piece: {piece.name: 1.0}),
        stretches(pieces, lambda piece: {cause: part / (piece.end_ns - piece.begin_ns) for cause, part in piece.causes.items()}),
    )


def stretches[Label](pieces: Sequence[Piece], shares: Callable[[Piece], dict[Label, float]]) -> list[Stretch[Label]]:
    """`shares` says of a piece which part of it belongs to whom (they add up to 1)."""
    if not pieces:
        return []
    begin_ns, end_ns = pieces[0].begin_ns, pieces[-1].end_ns
    cell_ns = (end_ns - begin_ns) / NUM_CELLS
    cells: list[dict[Label, float]] = [{} for _ in range(NUM_CELLS)]
    for piece in pieces:
        parts = shares(piece)
        for number in range(int((piece.begin_ns - begin_ns) / cell_ns), min(NUM_CELLS, int((piece.end_ns - begin_ns) / cell_ns) + 1)):
            cell_begin_ns = begin_ns + number * cell_ns
            inside_ns = min(piece.end_ns, cell_begin_ns + cell_ns) - max(piece.begin_ns, cell_begin_ns)
            for label, part in parts.items():
                cells[number][label] = cells[number].get(label, 0.0) + part * inside_ns
    most = [max(cell, key=lambda label, cell=cell: cell[label]) for cell in cells]
    found: list[Stretch[Label]] = []
    for label, run in groupby(enumerate(most), key=lambda each: each[1]):
        numbers = [number for number, _ in run]
        found.append(Stretch(label, seconds(numbers[0] * cell_ns), seconds(len(numbers) * cell_ns)))
    return found
