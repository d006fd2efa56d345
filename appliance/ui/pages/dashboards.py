"""The built-in dashboards: the same that Grafana gets."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import msgspec
from litestar import Controller, Request, Response, get
from litestar.di import NamedDependency
from litestar.params import FromPath

from appliance.dashboards.board import Board, Threshold
from appliance.dashboards.metrics import NoAnswer, Reach
from appliance.dashboards.viewer import ALL, RANGES_S, BoardAnswer, Choice, Window, window_of
from appliance.errors import Invalid, NotFound
from appliance.route_access import READS
from appliance.ui.parts import Ui
from appliance.ui.views import HEADERS

DEFAULT_RANGE = "15m"
MAX_CHOSEN = 100
"""Values of one variable."""
REFRESH_S = (15, 30, 60, 300)
COLOURS = {"green": "good", "orange": "warn", "red": "bad"}
"""Grafana's names of thresholds' colours, as ours."""

AnyRequest = Request[Any, Any, Any]
Uis = NamedDependency[Ui]


class DashboardPages(Controller):
    """A list of them, each as a page, and its numbers as JSON."""

    path = "/dashboards"

    @get("/", opt=READS)
    async def list(self, request: AnyRequest, ui: Uis) -> Response[str]:
        """All there are."""
        boards = ui.boards.values()
        links = {board.uid: grafana_link(ui, board.uid, {}) for board in boards}
        return ui.views.page(request, "dashboards.html", page="dashboards", boards=boards, reach=ui.house.viewer.metrics.reach, links=links)

    @get("/{uid:str}", opt=READS)
    async def show(self, request: AnyRequest, ui: Uis, uid: FromPath[str]) -> Response[str]:
        """One dashboard; its panels are filled by the browser."""
        board, reach = _board(ui, uid), ui.house.viewer.metrics.reach
        problem, choices = "", list[Choice]()
        try:
            choices = await ui.house.viewer.choices(board, _asked(request))
        except NoAnswer as error:
            problem = str(error)
        chosen = {choice.variable.name: choice.chosen for choice in choices}
        name, _ = _range(request, reach)
        return ui.views.page(
            request,
            "dashboard.html",
            page="dashboards",
            board=board,
            boards=ui.boards.values(),
            reach=reach,
            choices=choices,
            problem=problem,
            all=ALL,
            ranges=[each for each, seconds in RANGES_S.items() if seconds <= reach.longest_s],
            range=name,
            refreshes=REFRESH_S,
            refresh=_refresh(request),
            query=urlencode({**chosen, "range": name}, doseq=True),
            grafana=grafana_link(ui, board.uid, chosen),
            thresholds=_thresholds,
        )

    @get("/{uid:str}/data", opt=READS)
    async def data(self, request: AnyRequest, ui: Uis, uid: FromPath[str]) -> Response[BoardAnswer]:
        """The numbers of all panels, at `range` and the variables' values. Nobody sends expressions: those of the dashboard are asked."""
        board, viewer = _board(ui, uid), ui.house.viewer
        _, window = _range(request, viewer.metrics.reach)
        try:
            choices = await viewer.choices(board, _asked(request))
        except NoAnswer as error:
            answer = BoardAnswer.failed(board, str(error))
        else:
            answer = await viewer.answer(board, choices, window)
        return Response(answer, media_type="application/json", headers=HEADERS)


def _board(ui: Ui, uid: str) -> Board:
    if uid not in ui.boards:
        raise NotFound(f"there is no dashboard {uid[:80]!r}: there are {', '.join(ui.boards)}")
    return ui.boards[uid]


def _asked(request: AnyRequest) -> Mapping[str, Sequence[str]]:
    """Values by parameter; one that comes several times has several. Raises `Invalid`."""
    asked = {name: request.query_params.getall(name) for name in request.query_params}
    for name, values in asked.items():
        if len(values) > MAX_CHOSEN:
            raise Invalid(f"{name[:64]} has {len(values)} values: choose at most {MAX_CHOSEN}, or all", param=name[:64])
    return {name: [value.strip()[:200] for value in values] for name, values in asked.items()}


def _range(request: AnyRequest, reach: Reach) -> tuple[str, Window]:
    name = request.query_params.get("range", DEFAULT_RANGE)
    if name not in RANGES_S:
        raise Invalid(f"range is {name[:20]!r}: choose one of {', '.join(RANGES_S)}", param="range")
    return name, window_of(min(RANGES_S[name], reach.held_s), reach)


def _refresh(request: AnyRequest) -> int:
    """Seconds; 0 is never."""
    asked = request.query_params.get("refresh", str(REFRESH_S[0]))
    return int(asked) if asked.isdecimal() and int(asked) in (0, *REFRESH_S) else REFRESH_S[0]


def _thresholds(thresholds: tuple[Threshold, ...]) -> str:
    """As the script reads them: [[from, class], ...], ascending."""
    return msgspec.json.encode([(each.value, COLOURS.get(each.color, "good")) for each in thresholds]).decode()


def grafana_link(ui: Ui, uid: str, chosen: Mapping[str, Sequence[str]]) -> str:
    """A dashboard in the configured Grafana with these choices made; empty where none is configured."""
    url = ui.house.settings.grafana_url.rstrip("/")
    if not url:
        return ""
    values = {f"var-{name}": ["$__all" if value == ALL else value for value in values] for name, values in chosen.items()}
    return f"{url}/d/{uid}{'?' + urlencode(values, doseq=True) if values else ''}"
