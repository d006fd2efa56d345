"""What is checked of the container while it starts and serves."""

import contextlib
import json
import shutil
import subprocess
import time
from collections.abc import Iterator

import httpx
import yaml

from tools.docker_smoke.engine import CA_BUNDLE
from tools.docker_smoke.stack import COMPOSE_FILE, IMAGE, MODEL, PROFILES, ROOT, STAND_IN_FOLDER, Stack, free_port

UID = "10001"
KILL_ENGINE = """
import os, pathlib, signal
for process in pathlib.Path("/proc").glob("[0-9]*"):
    if b"-m\\0engine\\0run" in (process / "cmdline").read_bytes():
        os.kill(int(process.name), signal.SIGKILL)
        print(process.name)
"""


def check_the_image_builds(stack: Stack) -> str:
    """Size and seconds are left in `measured`; layers of an earlier build are used where they are still there."""
    secret = ["--secret", f"id=ca,src={CA_BUNDLE}"] if CA_BUNDLE.exists() else []
    revision = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    began_s = time.monotonic()
    arguments = ["--build-arg", f"REVISION={revision or 'unknown'}", "--target", "cpu", "--tag", IMAGE]
    stack.docker.run("build", "--progress=plain", *secret, "--file", str(ROOT / "docker" / "Dockerfile"), *arguments, str(ROOT))
    stack.measured["build_s"] = time.monotonic() - began_s
    image = json.loads(stack.docker.run("image", "inspect", IMAGE))[0]
    stack.measured["image_bytes"] = image["Size"]
    labels = image["Config"]["Labels"]
    assert labels["org.opencontainers.image.revision"] == (revision or "unknown") and labels["org.opencontainers.image.licenses"], labels
    assert image["Config"]["User"] == f"{UID}:{UID}" and image["Config"]["StopSignal"] == "SIGTERM", image["Config"]
    return f"{image['Size'] / 1e6:.0f} MB in {stack.measured['build_s']:.0f} s"


def check_the_compose_file_is_valid_in_every_profile(stack: Stack) -> str:
    for profiles in ((), *((profile,) for profile in PROFILES), PROFILES):
        stack.compose("config", "--quiet", profiles=profiles)
    return f"no profile, {', '.join(PROFILES)}, and all of them; {_compose_2(stack)}"


def _compose_2(stack: Stack) -> str:
    """What operators have, where this machine has 1.29: Debian 13's, in a container that reads the checkout."""
    image, variables = "fairlane-smoke-compose", [f"--env=SECRETS_DIR={stack.secrets_dir}", f"--env=COMPOSE_PROFILES={','.join(PROFILES)}"]
    stack.docker.run("build", "--target", "compose", "--tag", image, str(STAND_IN_FOLDER))
    mounts = [f"--volume={folder}:{folder}:ro" for folder in (ROOT, stack.secrets_dir)]
    shown = stack.docker.run(
        "run", "--rm", "--network=none", *mounts, *variables, "--env=CPU_REPLICAS=0", image, "-f", str(COMPOSE_FILE), "config"
    )
    services = yaml.safe_load(shown)["services"]
    assert services["appliance"]["scale"] == 0 and services["appliance-gpu"]["build"]["target"] == "cuda12", shown
    version = stack.docker.run("run", "--rm", "--network=none", image, "version", "--short").strip()
    return f"all of them by Compose {version}, too"


def check_it_is_healthy_only_after_warm_up(stack: Stack) -> str:
    """From nothing: no image's cache, no data. The one-shot migration has ended before."""
    began_s = time.monotonic()
    stack.compose("up", "--detach", "appliance")
    states: list[tuple[int, str]] = []

    def is_healthy() -> bool:
        health = stack.inspect(".State.Health.Status")  # asked first: it lags, so "healthy" must find readiness
        states.append((stack.status("/readyz"), health))
        if states[-1][0] == httpx.codes.OK:
            stack.measured.setdefault("cold_start_s", time.monotonic() - began_s)
        return health == "healthy"

    stack.until(is_healthy, "health")
    early = [health for readyz, health in states if readyz != httpx.codes.OK]
    assert early and set(early) == {"starting"}, f"health before /readyz was 200: {sorted(set(early))}"
    failed = stack.inspect(".State.Health.Log")
    return f"ready after {stack.measured['cold_start_s']:.0f} s, {len(early)} times asked before; last: {failed[-1]['Output'] or 'ok'}"


def check_a_chat_request_answers_paris(stack: Stack) -> str:
    answer = stack.client().chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "What is the capital of France?"}], temperature=0, max_tokens=24
    )
    text = answer.choices[0].message.content or ""
    assert "Paris" in text, text
    return text.strip()


def check_it_runs_as_nobody_else_and_can_gain_nothing(stack: Stack) -> str:
    users = {line.split()[0] for line in stack.docker.run("top", stack.container, "-eo", "uid,pid,args").splitlines()[1:]}
    assert users == {UID}, users
    status = stack.in_container("cat", "/proc/self/status")
    facts = {key: value.strip() for key, _, value in (line.partition(":") for line in status.splitlines())}
    assert int(facts["CapEff"], 16) == int(facts["CapBnd"], 16) == 0 and facts["NoNewPrivs"] == "1", facts
    return f"all processes are uid {UID}, without capabilities, no_new_privs"


def check_the_root_file_system_is_read_only(stack: Stack) -> str:
    refused = stack.docker.run("exec", stack.container, "touch", "/app/x", check=False)
    assert "Read-only file system" in refused, refused
    stack.in_container("touch", "/tmp/x")
    assert stack.inspect(".HostConfig.ReadonlyRootfs") is True
    mounts = sorted(mount["Destination"] for mount in stack.inspect(".Mounts") if mount["RW"])
    return f"written to: {', '.join(mounts)}, /tmp"


def check_no_secret_is_in_what_docker_shows(stack: Stack) -> str:
    shown = stack.docker.run("inspect", stack.container) + stack.docker.run("logs", stack.container)
    leaked = [path.name for path in stack.secrets_dir.iterdir() if len(path.read_text()) >= 16 and path.read_text() in shown]
    assert not leaked, leaked
    return "neither `docker inspect` nor the log shows one"


@contextlib.contextmanager
def _prometheus(stack: Stack) -> Iterator[str]:
    """A Prometheus process on this machine, with docker/prometheus.yaml; its URL."""
    program = shutil.which("prometheus")
    assert program, "the program prometheus is missing (Debian: apt install prometheus)"
    folder, port = stack.scratch / "prometheus", free_port()
    folder.mkdir()
    config = (ROOT / "docker" / "prometheus.yaml").read_text()
    replacements = {
        "appliance:8000": f"127.0.0.1:{stack.port}",
        "/etc/prometheus/rules": str(ROOT / "alerts"),
        "scrape_interval: 10s": "scrape_interval: 1s",
        "/run/secrets": str(stack.secrets_dir),
    }
    for shipped, here in replacements.items():
        assert shipped in config, shipped
        config = config.replace(shipped, here)
    (folder / "prometheus.yml").write_text(config)
    command = [program, "--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


def check_metrics_are_scraped_by_prometheus_with_the_key(stack: Stack) -> str:
    assert stack.status("/metrics") == 401, "without a key"
    assert stack.status("/metrics", stack.secret("api_key")) == 403, "with a key that is not for metrics"

    def value(url: str, query: str) -> float:
        with contextlib.suppress(httpx.HTTPError, LookupError, ValueError):
            return float(httpx.get(f"{url}/api/v1/query", params={"query": query}, timeout=5).json()["data"]["result"][0]["value"][1])
        return 0.0

    with _prometheus(stack) as url:
        completed = 'sum(fairlane_requests_total{outcome="completed"})'
        stack.until(lambda: value(url, 'up{job="fairlane"}') == 1 and value(url, completed) >= 1, "a scrape with a request in it", 300)
        return f"401 without a key; Prometheus counts {value(url, completed):.0f} completed requests"


def check_the_engine_recovers_from_kill_9(stack: Stack) -> str:
    killed = stack.in_container("python", "-c", KILL_ENGINE).split()
    assert len(killed) == 1, killed
    began_s = time.monotonic()
    stack.until(lambda: stack.status("/readyz") == httpx.codes.SERVICE_UNAVAILABLE, "the end of readiness", 30)
    stack.until_ready()
    stack.measured["engine_recovery_s"] = time.monotonic() - began_s
    assert stack.inspect(".RestartCount") == 0, "the container itself was not to restart"
    return f"ready again after {stack.measured['engine_recovery_s']:.1f} s; {check_a_chat_request_answers_paris(stack)}"


def check_the_doctor_finds_nothing_that_fails(stack: Stack) -> str:
    """Beside the server; a virtual machine's clock may well be one that nobody sets."""
    found = json.loads(stack.in_container("fairlane", "doctor", "--json"))
    states = {each["name"]: each["state"] for each in found}
    assert all(state == "ok" for name, state in states.items() if name != "clock"), found
    told = {each["name"]: each["found"] for each in found}
    assert told["database"].startswith("/data/fairlane.db at revision") and "beside http://127.0.0.1:8000" in told["memory"], found
    return ", ".join(f"{name} {state}" for name, state in states.items())


def check_no_process_is_left_behind_as_a_zombie(stack: Stack) -> str:
    listed = stack.docker.run("top", stack.container, "-eo", "pid,stat,args").splitlines()[1:]
    assert not [line for line in listed if line.split()[1].startswith("Z")], listed
    return f"{len(listed)} processes"


CHECKS_RUNNING = (
    check_the_image_builds,
    check_the_compose_file_is_valid_in_every_profile,
    check_it_is_healthy_only_after_warm_up,
    check_a_chat_request_answers_paris,
    check_it_runs_as_nobody_else_and_can_gain_nothing,
    check_the_root_file_system_is_read_only,
    check_no_secret_is_in_what_docker_shows,
    check_metrics_are_scraped_by_prometheus_with_the_key,
    check_the_engine_recovers_from_kill_9,
    check_the_doctor_finds_nothing_that_fails,
    check_no_process_is_left_behind_as_a_zombie,
)
