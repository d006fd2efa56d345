"""Grafana's HTTP API as far as `fairlane grafana push` uses it, in this process, with a memory."""

import contextlib
import http.server
import json
import threading
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

TOKEN = "glsa_0123456789"

type Json = dict[str, Any]


@dataclass(slots=True)
class FakeGrafana:
    """What it was told."""

    url: str = ""
    datasources: dict[str, Json] = field(default_factory=dict[str, Json])
    folders: dict[str, Json] = field(default_factory=dict[str, Json])
    dashboards: dict[str, Json] = field(default_factory=dict[str, Json])
    """By uid: {"dashboard": ..., "meta": {"folderUid": ...}}."""
    rights: list[Json] = field(
        default_factory=lambda: [{"role": "Viewer", "permission": 1}, {"role": "Editor", "permission": 2, "inherited": True}]
    )
    teams: list[Json] = field(default_factory=lambda: [{"id": 7, "name": "ops"}, {"id": 8, "name": "ops-night"}])
    num_writes: int = 0

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        """Status and body of a call."""
        self.num_writes += method != "GET"
        match method, path.strip("/").split("/")[1:]:
            case "GET", ["datasources", "uid", uid]:
                return _or_404(self.datasources.get(uid))
            case ("POST", ["datasources"]) | ("PUT", ["datasources", "uid", _]):
                self.datasources[body["uid"]] = {"id": 1, "readOnly": False, **body}
                return 200, {"message": "Datasource saved", "id": 1}
            case "GET", ["folders", uid]:
                return _or_404(self.folders.get(uid))
            case "POST", ["folders"]:
                self.folders[body["uid"]] = {"id": 3, "version": 1, **body}
                return 200, self.folders[body["uid"]]
            case "GET", ["folders", _, "permissions"]:
                return 200, self.rights
            case "POST", ["folders", _, "permissions"]:
                self.rights = body["items"]
                return 200, {"message": "Folder permissions updated"}
            case "GET", ["dashboards", "uid", uid]:
                return _or_404(self.dashboards.get(uid))
            case "POST", ["dashboards", "db"]:
                return self._save(body)
            case "GET", ["teams", "search"]:
                return 200, {"totalCount": len(self.teams), "teams": self.teams, "page": 1, "perPage": 1000}
            case _:
                return 501, {"message": f"{method} {path} is not in this fake"}

    def _save(self, body: Json) -> tuple[int, Json]:
        if body["folderUid"] not in self.folders:
            return 404, {"message": "folder not found"}
        dashboard = body["dashboard"]
        version = self.dashboards.get(dashboard["uid"], {"dashboard": {"version": 0}})["dashboard"]["version"] + 1
        saved = {**dashboard, "id": len(self.dashboards) + 1, "version": version}
        self.dashboards[dashboard["uid"]] = {"dashboard": saved, "meta": {"folderUid": body["folderUid"]}}
        return 200, {"status": "success", "uid": dashboard["uid"], "version": version}


def _or_404(found: Json | None) -> tuple[int, Json]:
    return (200, found) if found is not None else (404, {"message": "not found"})


@contextlib.contextmanager
def running_grafana() -> Iterator[FakeGrafana]:
    """It answers until the block ends."""
    grafana = FakeGrafana()

    class Handler(http.server.BaseHTTPRequestHandler):
        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            status, answer = 401, {"message": "Invalid API key"}
            if self.headers.get("Authorization") == f"Bearer {TOKEN}":
                status, answer = grafana.answer(self.command, urllib.parse.urlsplit(self.path).path, body)
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = _answer  # noqa: N815 (the library names them)

        def log_message(self, format: str, *args: object) -> None:
            """It says nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        grafana.url = f"http://127.0.0.1:{server.server_port}"
        yield grafana
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
