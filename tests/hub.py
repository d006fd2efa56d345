"""A server that answers as the Hugging Face hub does, with small models."""

import contextlib
import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.tiny_models import write_family_model

COMMIT = "a" * 40
TOKEN = "hf_token_of_the_test"


@dataclass
class Hub:
    """Serves the files of models, of which `owner/gated` wants the token."""

    files: dict[str, dict[str, bytes]]
    url: str = ""
    fetched: list[str] = field(default_factory=list[str])

    def answer(self, path: str, authorization: str | None) -> tuple[int, bytes, dict[str, str]]:
        """Status, body and headers of a GET."""
        name, rest = next(((name, path.partition(name)[2]) for name in self.files if name in path), ("", ""))
        if not name or (name == "owner/gated" and authorization != f"Bearer {TOKEN}"):
            return 401, b"{}", {"X-Error-Code": "GatedRepo" if name else "RepoNotFound"}
        if rest.startswith("/revision/"):
            return 200, json.dumps({"id": name, "sha": COMMIT, "siblings": [{"rfilename": file} for file in self.files[name]]}).encode(), {}
        if rest.startswith("/tree/"):
            listed = [{"type": "file", "path": file, "size": len(body), "oid": _digest(body)} for file, body in self.files[name].items()]
            return 200, json.dumps(listed).encode(), {}
        body = self.files[name][rest.rpartition("/")[2]]
        return 200, body, {"X-Repo-Commit": COMMIT, "ETag": f'"{_digest(body)}"'}


def _digest(body: bytes) -> str:
    return hashlib.sha1(body).hexdigest()


@contextlib.contextmanager
def serving_hub(folder: Path, address: str = "127.0.0.1") -> Iterator[Hub]:
    """Until the block ends. Writes its models to `folder` first; `address` is one of this machine's."""
    source = write_family_model(folder, "llama3")
    small = {path.name: path.read_bytes() for path in source.iterdir()} | {"README.md": b"not wanted", "a.gguf": b"GGUF"}
    strange = {**small, "config.json": json.dumps({"architectures": ["SomethingElse"], "model_type": "else"}).encode()}
    found = Hub({"owner/small": small, "owner/gated": small, "owner/strange": strange})

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body, headers = found.answer(self.path.partition("?")[0], self.headers.get("Authorization"))
            if self.command == "GET" and "/resolve/" in self.path:
                found.fetched.append(self.path.rpartition("/")[2])
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(body)), "Content-Type": "application/json"}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None:
            """It says nothing."""

    server = http.server.ThreadingHTTPServer((address, 0), Handler)
    found.url = f"http://{address}:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
