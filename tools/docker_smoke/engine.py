"""A Docker engine: the machine's own, or one started here for as long as it is needed; and the base image, also without a registry."""

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BASE_IMAGE = "debian:trixie-slim"
"""What docker/Dockerfile starts from."""
BASE_SUITE = "trixie"
CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
ANSI = re.compile(r"\x1b\[[0-9;]*m")
"""Colours, which docker-compose writes also where nobody sees them."""
START_TIMEOUT_S = 60.0
ASK_TIMEOUT_S = 20.0
PROBE_TIMEOUT_S = 120.0
PULL_TIMEOUT_S = 120.0
SLIM_LEAVES_OUT = ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info", "var/cache/apt", "var/lib/apt/lists")
"""As Debian's own slim images do, for packages installed later, too."""


class NoEngine(Exception):
    """There is no Docker engine, and none can be started; the message says why."""


@dataclass(frozen=True, slots=True)
class Docker:
    """A client that reaches an engine."""

    program: str
    environ: dict[str, str]

    def run(self, *arguments: str, given: bytes | None = None, timeout_s: float = 900.0, check: bool = True) -> str:
        """What a docker command prints on both outputs. Raises `AssertionError` with it where the command fails."""
        return run([self.program, *arguments], self.environ, given=given, timeout_s=timeout_s, check=check)

    def has_image(self, name: str) -> bool:
        return bool(self.run("images", "--quiet", name).strip())


def run(command: list[str], environ: dict[str, str], *, given: bytes | None = None, timeout_s: float = 900.0, check: bool = True) -> str:
    """Run a program and return what it prints. Raises `AssertionError` with the end of that where it fails."""
    pipe = {"input": given} if given is not None else {"stdin": subprocess.DEVNULL}
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout_s, check=False, **pipe)  # type: ignore[call-overload]
    text = ANSI.sub("", done.stdout.decode(errors="replace"))
    assert not check or done.returncode == 0, f"{' '.join(command[:4])} ... ended with {done.returncode}: {text[-2_000:]}"
    return text


@contextlib.contextmanager
def docker_engine() -> Iterator[Docker]:
    """The engine that the environment's client reaches; else one of our own in a temporary folder, gone with all it holds afterwards.

    Raises:
        NoEngine: none answers, and none can be started.
    """
    program = _client()
    environ = {**os.environ, "DOCKER_BUILDKIT": "1"}
    if _answers(program, environ):
        yield Docker(program, environ)
        return
    if shutil.which("dockerd") is None or os.geteuid() != 0:
        raise NoEngine("no Docker engine answers, and starting one takes root and the program dockerd (Debian: apt install docker.io)")
    folder = Path(tempfile.mkdtemp(prefix="fairlane-docker-"))
    environ["DOCKER_HOST"] = f"unix://{folder}/docker.sock"
    command = ["dockerd", f"--data-root={folder}/root", f"--exec-root={folder}/exec", f"--pidfile={folder}/pid"]
    with (folder / "log").open("wb") as log:
        daemon = subprocess.Popen([*command, f"--host={environ['DOCKER_HOST']}"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not _answers(program, environ):
            if daemon.poll() is not None or time.monotonic() > deadline_s:
                raise NoEngine(f"dockerd does not run here: {(folder / 'log').read_text(errors='replace')[-1_500:]}")
            time.sleep(0.2)
        yield Docker(program, environ)
    finally:
        daemon.terminate()
        try:
            daemon.wait(60)
        except subprocess.TimeoutExpired:
            daemon.kill()  # its containerd ends with it
            daemon.wait()
        _remove(folder)


def _remove(folder: Path) -> None:
    """A folder with all that is mounted in it. What can not be removed is no reason to fail."""
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for mount in sorted((each for each in mounts if each.startswith(f"{folder}/")), reverse=True):
        subprocess.run(["umount", "--lazy", mount], capture_output=True, check=False)
    shutil.rmtree(folder, ignore_errors=True)


def _client() -> str:
    """A client that can build with BuildKit: a newer one needs its plugin buildx for that, Debian's brings it along."""
    found = dict.fromkeys(
        str(folder / "docker") for folder in (*map(Path, os.get_exec_path()), Path("/usr/bin")) if os.access(folder / "docker", os.X_OK)
    )
    for program in found:
        version = _ask(program, "version", "--format", "{{.Client.Version}}").stdout
        if version.startswith(("18.09", "19.", "20.")) or _ask(program, "buildx", "version").returncode == 0:
            return program
    raise NoEngine("there is no docker client that can build with BuildKit (Debian: apt install docker.io, or docker-buildx beside it)")


def _ask(*command: str) -> subprocess.CompletedProcess[str]:
    """What a program says; one that says nothing in time has failed."""
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=ASK_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", "")


def _answers(program: str, environ: dict[str, str]) -> bool:
    try:
        return subprocess.run([program, "info"], env=environ, capture_output=True, check=False, timeout=ASK_TIMEOUT_S).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def require_containers(docker: Docker, mounted: Path) -> None:
    """A container of the base image runs here, reads a file of this checkout as another user, and reaches Debian's packages, as the
    build must. Raises `NoEngine`."""
    for arguments, what in (
        ([BASE_IMAGE, "true"], "containers do not run here"),
        (["--user=10001", f"--volume={mounted}:/mounted:ro", BASE_IMAGE, "cat", "/mounted"], "containers can not read this checkout"),
        ([BASE_IMAGE, "apt-get", "update", "-qq"], "containers reach no packages"),
    ):
        try:
            docker.run("run", "--rm", *arguments, timeout_s=PROBE_TIMEOUT_S)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            raise NoEngine(f"{what}: {error}") from error


MADE = "made by debootstrap"


def ensure_base(docker: Docker) -> str:
    """The Dockerfile's base image is there: from a registry, or made of Debian's packages under its name (`MADE`). Says which."""
    if docker.has_image(BASE_IMAGE):
        return "was there"
    with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
        docker.run("pull", "--quiet", BASE_IMAGE, timeout_s=PULL_TIMEOUT_S)
        return "pulled"
    if shutil.which("debootstrap") is None:
        raise NoEngine(
            f"{BASE_IMAGE} can not be pulled, and debootstrap, which could make it, is missing (Debian: apt install debootstrap)"
        )
    with tempfile.TemporaryDirectory(prefix="fairlane-base-") as scratch:
        root, archive = Path(scratch) / "root", Path(scratch) / "base.tar"
        try:
            run(["debootstrap", "--variant=minbase", BASE_SUITE, str(root)], dict(os.environ))
        except (AssertionError, subprocess.TimeoutExpired) as error:
            raise NoEngine(f"{BASE_IMAGE} can neither be pulled nor made: {error}") from error
        for path in SLIM_LEAVES_OUT:
            for each in (root / path).iterdir():
                shutil.rmtree(each) if each.is_dir() and not each.is_symlink() else each.unlink()
        excluded = "".join(f"path-exclude /{path}/*\n" for path in SLIM_LEAVES_OUT if path.startswith("usr/"))
        (root / "etc/dpkg/dpkg.cfg.d/docker").write_text(excluded)
        run(["tar", "-C", str(root), "-cf", str(archive), "."], dict(os.environ))
        docker.run("import", str(archive), BASE_IMAGE)
    return MADE
