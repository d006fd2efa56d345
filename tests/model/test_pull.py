"""`fairlane model pull` with the hub's own library, against a server that answers as a hub does."""

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from engine.model.source import open_source
from tests.tiny_models import write_family_model

COMMIT = "a" * 40
TOKEN = "hf_token_of_the_test"


@dataclass
class Hub:
    """Serves the files of two models, of which `owner/gated` wants the token."""

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


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    folder = write_family_model(tmp_path / "source", "llama3")
    small = {path.name: path.read_bytes() for path in folder.iterdir()} | {"README.md": b"not wanted", "a.gguf": b"GGUF"}
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

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def pull(
    hub: Hub, out: Path, *arguments: str, program: tuple[str, ...] = ("engine.model.pull",), **variables: str
) -> subprocess.CompletedProcess[str]:
    """The command with a hub of its own and no token but the one given."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    environ |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(out / "home"), **variables}
    command = [sys.executable, "-m", *program, *arguments, "--out", str(out)]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=120)


def test_what_was_pulled_is_a_model_that_opens_and_is_not_asked_for_again(hub: Hub, tmp_path: Path) -> None:
    done = pull(hub, tmp_path, "owner/small", program=("appliance.cli.main", "model", "pull"))
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip())
    assert folder == tmp_path / "owner" / "small" and open_source(str(folder)).config.architecture
    assert "model.safetensors" in hub.fetched and "README.md" not in hub.fetched and "a.gguf" not in hub.fetched
    number = len(hub.fetched)
    again = pull(hub, tmp_path, "owner/small", HF_HUB_OFFLINE="1")
    assert (again.returncode, again.stdout) == (0, done.stdout) and len(hub.fetched) == number


def test_one_gguf_file_is_fetched_where_it_is_named(hub: Hub, tmp_path: Path) -> None:
    done = pull(hub, tmp_path, "owner/small", "--file", "a.gguf")
    assert done.stdout.strip() == str(tmp_path / "owner" / "small" / "a.gguf") and hub.fetched == ["a.gguf"]
    missing = pull(hub, tmp_path, "owner/small", "--file", "b.gguf")
    assert missing.returncode == 1 and "has no file 'b.gguf'" in missing.stderr


def test_a_token_opens_what_is_not_for_everybody_and_its_lack_is_told(hub: Hub, tmp_path: Path) -> None:
    refused = pull(hub, tmp_path, "owner/gated")
    assert refused.returncode == 1 and "HF_TOKEN" in refused.stderr and "Traceback" not in refused.stderr
    (tmp_path / "token").write_text(TOKEN + "\n")
    assert pull(hub, tmp_path, "owner/gated", HF_TOKEN_PATH=str(tmp_path / "token")).returncode == 0


def test_an_unsupported_model_is_refused_before_its_weights_are_fetched(hub: Hub, tmp_path: Path) -> None:
    refused = pull(hub, tmp_path, "owner/strange")
    assert refused.returncode == 1 and "SomethingElse" in refused.stderr
    assert "model.safetensors" not in hub.fetched


@pytest.mark.parametrize(
    ("variable", "value", "said"), [("HF_HUB_OFFLINE", "1", "HF_HUB_OFFLINE"), ("HF_ENDPOINT", "http://127.0.0.1:1", "run it again")]
)
def test_a_hub_that_can_not_be_asked_is_told(hub: Hub, tmp_path: Path, variable: str, value: str, said: str) -> None:
    refused = pull(hub, tmp_path, "owner/small", **{variable: value})
    assert refused.returncode == 1 and said in refused.stderr and "Traceback" not in refused.stderr
