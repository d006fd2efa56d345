"""The project of compose.yaml as the checks see it: containers, commands in them, and the API from outside."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from openai import OpenAI

from tools.docker_smoke.engine import Docker, run

ROOT = Path(__file__).resolve().parents[2]
COMPOSE_FILE = ROOT / "docker" / "compose.yaml"
STAND_IN_FOLDER = Path(__file__).parent / "standins"
IMAGE = "fairlane:cpu"
MODEL = "smollm2-135m-instruct"
PROFILES = ("gpu", "pg", "observability", "tls")
READY_TIMEOUT_S = 900.0
"""The image's start period: a machine that others keep busy compiles for minutes."""


def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def compose_program(docker: Docker) -> list[str]:
    """The plugin, or Debian's docker-compose. Raises `AssertionError` where there is neither."""
    plugin = subprocess.run([docker.program, "compose", "version"], capture_output=True, check=False)
    if plugin.returncode == 0:
        return [docker.program, "compose"]
    assert shutil.which("docker-compose"), "neither `docker compose` nor docker-compose is there (Debian: apt install docker-compose)"
    return ["docker-compose"]


@dataclass(slots=True)
class Stack:
    """A project of its own: name, port, secrets and volumes are nobody else's."""

    docker: Docker
    scratch: Path
    has_registry: bool
    """Images of others can be pulled: one could."""
    project: str = field(default_factory=lambda: f"fairlane-smoke-{os.getpid()}")
    port: int = field(default_factory=free_port)
    measured: dict[str, float] = field(default_factory=dict[str, float])
    notes: dict[str, str] = field(default_factory=dict[str, str])
    """What one check leaves for a later one."""
    profiles: tuple[str, ...] = ()
    """Those that compose commands are given, where they are not told others."""
    variables: dict[str, str] = field(default_factory=dict[str, str])
    """Of compose.yaml."""

    def __post_init__(self) -> None:
        self.make_secrets()

    def make_secrets(self, *arguments: str) -> None:
        run(["sh", str(ROOT / "docker" / "make-secrets.sh"), *arguments], {**os.environ, "SECRETS_DIR": str(self.secrets_dir)})

    @property
    def secrets_dir(self) -> Path:
        return self.scratch / "secrets"

    def secret(self, name: str) -> str:
        return (self.secrets_dir / name).read_text()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def compose(self, *arguments: str, profiles: tuple[str, ...] | None = None, check: bool = True) -> str:
        """What a compose command on this project prints."""
        chosen = self.profiles if profiles is None else profiles
        environ = {**self.docker.environ, **self.variables, "PORT": str(self.port), "SECRETS_DIR": str(self.secrets_dir)}
        environ["COMPOSE_HTTP_TIMEOUT"] = "600"  # a busy disk takes more than Compose 1.29's 60 s to make a container
        command = [*compose_program(self.docker), "--project-name", self.project, "--file", str(COMPOSE_FILE)]
        return run([*command, *arguments], {**environ, "COMPOSE_PROFILES": ",".join(chosen)}, check=check)

    @property
    def container(self) -> str:
        """Id of the appliance's container, running or not."""
        label = f"label=com.docker.compose.project={self.project}"
        return self.docker.run(
            "ps", "--all", "--quiet", "--filter", label, "--filter", "label=com.docker.compose.service=appliance"
        ).strip()

    def volume(self, name: str) -> str:
        return f"{self.project}_{name}"

    def inspect(self, what: str) -> Any:
        """A part of `docker inspect` of the appliance, as `.State.Health`."""
        return json.loads(self.docker.run("inspect", "--format", f"{{{{json {what}}}}}", self.container))

    def in_container(self, *command: str) -> str:
        """What a command in the appliance's container prints on its standard output."""
        done = subprocess.run(
            [self.docker.program, "exec", self.container, *command], env=self.docker.environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command} ended with {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def one_shot(self, *arguments: str, options: tuple[str, ...] = ()) -> str:
        """What `docker run` of the image prints, on this project's volumes and with a read-only root, as `fairlane ...`."""
        volumes = [f"--volume={self.volume('data')}:/data", f"--volume={self.volume('cache')}:/cache"]
        return self.docker.run("run", "--rm", "--read-only", *volumes, *options, IMAGE, *arguments)

    def status(self, path: str, key: str = "") -> int:
        """HTTP status of a GET; 0 where nothing answers."""
        with contextlib.suppress(httpx.HTTPError):
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            return httpx.get(self.url + path, headers=headers, timeout=5.0).status_code
        return 0

    def client(self, key: str = "") -> OpenAI:
        """The official client, which tries each request once."""
        return OpenAI(base_url=f"{self.url}/v1", api_key=key or self.secret("api_key"), max_retries=0, timeout=120.0)

    def until(self, fact: Callable[[], object], what: str, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until a fact about another process is true. Raises `AssertionError`."""
        deadline_s = time.monotonic() + timeout_s
        while not fact():
            assert time.monotonic() < deadline_s, (
                f"{what} did not come in {timeout_s:g} s: {self.compose('logs', '--tail=30', check=False)}"
            )
            time.sleep(0.1)

    def until_ready(self) -> None:
        self.until(lambda: self.status("/readyz") == httpx.codes.OK, "readiness")

    def close(self) -> None:
        """Containers, networks and volumes of the project go."""
        self.compose("down", "--volumes", "--timeout", "1", profiles=PROFILES, check=False)
