"""The live stream of a page, as a handler answers it."""

from collections.abc import Mapping
from typing import Any

from litestar import Request
from litestar.response import Stream

from appliance.ui.live import Snapshot
from appliance.ui.parts import Ui

HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no", "x-content-type-options": "nosniff"}


def live_stream(request: Request[Any, Any, Any], ui: Ui, key: str, snapshot: Snapshot, *, with_points: bool = False) -> Stream:
    """Frames for this viewer. `key` names what the snapshot depends on: viewers of one key share it. Raises `Unavailable`."""
    frames = ui.live.stream(
        key, lambda: {**snapshot(), **status_piece(ui)}, lambda: ui.doorkeeper.is_still_in(request), with_points=with_points
    )
    return Stream(frames, media_type="text/event-stream", headers=HEADERS)


def status_piece(ui: Ui) -> Mapping[str, str]:
    """The appliance's state in the menu, on every page."""
    return {"live-status": ui.views.fragment("status.html")}
