"""What a Grafana should have, compared with what it has: a list of changes, which are then made.

Deciding is pure; the Grafana behind it is a Protocol, which grafana-client implements in `client.py`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

DATASOURCE_UID = "fairlane-prometheus"
FOLDER_UID, FOLDER_TITLE = "fairlane", "Fairlane"
PERMISSIONS: dict[str, int] = {"view": 1, "edit": 2, "admin": 4}
"""Grafana's numbers."""
NEW_FOLDERS_RIGHTS: list[dict[str, Any]] = [{"role": "Viewer", "permission": 1}, {"role": "Editor", "permission": 2}]
"""What Grafana gives a folder that is made: kept beside the teams' rights."""
GIVEN_BY_GRAFANA = frozenset({"id", "version"})
"""Fields of a dashboard that change with every save."""

type Json = dict[str, Any]
type Kind = Literal["datasource", "folder", "dashboard", "rights"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """All of it. `teams`: right (view, edit, admin) on the folder by team's name."""

    prometheus_url: str
    dashboards: Sequence[Json]
    teams: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Change:
    """One thing to be made or altered. `body` is what Grafana is sent."""

    verb: Literal["create", "update"]
    kind: Kind
    name: str
    body: Json

    def __str__(self) -> str:
        return f"{self.verb} {self.kind} {self.name}"


class Grafana(Protocol):
    """What is asked of a Grafana; reading gives None where there is nothing."""

    def datasource(self, uid: str) -> Json | None: ...

    def folder(self, uid: str) -> Json | None: ...

    def dashboard(self, uid: str) -> Json | None:
        """The dashboard itself, and under `folderUid` where it lies."""
        ...

    def team_id(self, name: str) -> int | None: ...

    def folder_rights(self, uid: str) -> list[Json]: ...

    def apply(self, change: Change) -> None:
        """Make a change."""
        ...


class UnknownTeam(Exception):
    """A team that Grafana does not have; the message says which."""


def changes(grafana: Grafana, wanted: Wanted) -> Iterator[Change]:
    """What is missing or different, in the order in which it can be made. Nothing, where all is as wanted.

    Raises:
        UnknownTeam: before anything is changed, where all changes are taken before the first is made.
    """
    yield from _datasource_change(grafana.datasource(DATASOURCE_UID), wanted.prometheus_url)
    folder = grafana.folder(FOLDER_UID)
    if folder is None:
        yield Change("create", "folder", FOLDER_TITLE, {"uid": FOLDER_UID, "title": FOLDER_TITLE})
    for dashboard in wanted.dashboards:
        yield from _dashboard_change(grafana.dashboard(dashboard["uid"]), _bound(dashboard))
    if wanted.teams:
        yield from _rights_change(grafana, grafana.folder_rights(FOLDER_UID) if folder is not None else NEW_FOLDERS_RIGHTS, wanted.teams)


def _datasource_change(found: Json | None, url: str) -> Iterator[Change]:
    body = {
        "uid": DATASOURCE_UID, "name": "Fairlane", "type": "prometheus", "access": "proxy", "url": url,
        "jsonData": {"timeInterval": "10s", "httpMethod": "POST"},
    }  # fmt: skip
    if found is None:
        yield Change("create", "datasource", "Fairlane", body)
    elif any(found.get(name) != value for name, value in body.items()):
        yield Change("update", "datasource", "Fairlane", body)


def _dashboard_change(found: Json | None, dashboard: Json) -> Iterator[Change]:
    body = {"dashboard": dashboard, "folderUid": FOLDER_UID, "overwrite": True, "message": "fairlane grafana push"}
    if found is None:
        yield Change("create", "dashboard", dashboard["title"], body)
    elif found.get("folderUid") != FOLDER_UID or _plain(found) != _plain(dashboard):
        yield Change("update", "dashboard", dashboard["title"], body)


def _bound(dashboard: Json) -> Json:
    """With our datasource as the choice that is made at first."""
    variables = [
        {**variable, "current": {"text": "Fairlane", "value": DATASOURCE_UID}} if variable["name"] == "datasource" else variable
        for variable in dashboard["templating"]["list"]
    ]
    return {**dashboard, "templating": {**dashboard["templating"], "list": variables}}


def _plain(dashboard: Json) -> Json:
    return {name: value for name, value in dashboard.items() if name not in GIVEN_BY_GRAFANA | {"folderUid"}}


def _rights_change(grafana: Grafana, found: Sequence[Json], teams: Mapping[str, str]) -> Iterator[Change]:
    """Rights of the teams named are as wanted; those of everybody else stay as they are."""
    ids = {name: grafana.team_id(name) for name in teams}
    unknown = [name for name, team_id in ids.items() if team_id is None]
    if unknown:
        raise UnknownTeam(f"this Grafana has no team {unknown[0]!r}: make it first, or leave --team {unknown[0]}=... out")
    wanted = {team_id: PERMISSIONS[right] for name, right in teams.items() if (team_id := ids[name]) is not None}
    has = {item["teamId"]: item["permission"] for item in found if item.get("teamId")}
    if all(has.get(team_id) == permission for team_id, permission in wanted.items()):
        return
    others = [item for item in (_right(item) for item in found) if item is not None and item.get("teamId") not in wanted]
    items = others + [{"teamId": team_id, "permission": permission} for team_id, permission in wanted.items()]
    yield Change("update", "rights", ", ".join(f"{name}={right}" for name, right in teams.items()), {"items": items})


def _right(item: Json) -> Json | None:
    """A right as Grafana takes it back; inherited ones are not its own."""
    if item.get("inherited"):
        return None
    return {name: item[name] for name in ("role", "teamId", "userId", "permission") if item.get(name)}
