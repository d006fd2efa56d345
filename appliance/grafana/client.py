"""A Grafana over HTTP, through grafana-client (the successor of grafana-api). It comes with the extra `grafana`: its HTTP library
takes the place of urllib3 wherever it is installed."""

from typing import Any

from grafana_client import GrafanaApi  # pyright: ignore[reportMissingImports]  (in an environment of its own)
from grafana_client.client import GrafanaClientError  # pyright: ignore[reportMissingImports]

from appliance.grafana.push import FOLDER_UID, Change, Json


class HttpGrafana:
    """Implements `Grafana`."""

    def __init__(self, url: str, credential: str | tuple[str, str]) -> None:
        """`credential`: a service account's token, or user and password."""
        self._api: Any = GrafanaApi.from_url(url, credential)

    def datasource(self, uid: str) -> Json | None:
        return self._found(self._api.datasource.get_datasource_by_uid, uid)

    def folder(self, uid: str) -> Json | None:
        return self._found(self._api.folder.get_folder, uid)

    def dashboard(self, uid: str) -> Json | None:
        found = self._found(self._api.dashboard.get_dashboard, uid)
        return {**found["dashboard"], "folderUid": found["meta"].get("folderUid", "")} if found else None

    def team_id(self, name: str) -> int | None:
        return next((team["id"] for team in self._api.teams.search_teams(query=name) if team["name"] == name), None)

    def folder_rights(self, uid: str) -> list[Json]:
        return self._api.folder.get_folder_permissions(uid)

    def apply(self, change: Change) -> None:
        match change.kind, change.verb:
            case "datasource", "create":
                self._api.datasource.create_datasource(change.body)
            case "datasource", _:
                self._api.datasource.update_datasource_by_uid(change.body["uid"], change.body)
            case "folder", _:
                self._api.folder.create_folder(change.body["title"], change.body["uid"])
            case "dashboard", _:
                self._api.dashboard.update_dashboard(change.body)
            case _:
                self._api.folder.update_folder_permissions(FOLDER_UID, change.body)

    def _found(self, read: Any, uid: str) -> Json | None:
        try:
            return read(uid)
        except GrafanaClientError as error:
            if error.status_code == 404:
                return None
            raise
