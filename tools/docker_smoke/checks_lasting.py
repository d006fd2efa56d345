"""What is checked of stopping, starting again, backups, upgrades and going back."""

import threading
import time

import httpx

from tools.docker_smoke.stack import IMAGE, MODEL, Stack

STREAM_TOKENS = 600
DOWNGRADE = """
import asyncio
from appliance.db.revision import known_revisions, migrate
asyncio.run(migrate("sqlite+aiosqlite:////data/fairlane.db", known_revisions()[1]))
print(known_revisions()[1])
"""
BACKUP = "/data/backup"


def check_docker_stop_drains_a_running_stream(stack: Stack) -> str:
    """Within compose.yaml's grace period: readiness falls first, new requests are refused, the stream that runs ends as if nothing were,
    then the process with 0; an administrator's open page is let go."""
    page = _OpenPage(stack)
    tenant_key = _tenant_with_a_key(stack)
    stream = stack.client(tenant_key).chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Tell a long story."}], temperature=0, max_tokens=STREAM_TOKENS, stream=True,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    chunks = iter(stream)
    for _ in range(5):
        next(chunks)
    stopping = threading.Thread(target=stack.docker.run, args=("stop", stack.container))
    began_s = time.monotonic()
    stopping.start()
    seen: list[int] = []
    left, finish = 0, None
    for chunk in chunks:
        if stack.status("/readyz") == httpx.codes.SERVICE_UNAVAILABLE and not seen:
            seen += [left, stack.status("/v1/models", tenant_key)]
        left += 1
        finish = chunk.choices[0].finish_reason if chunk.choices else finish
    stopping.join(120)
    state = stack.inspect(".State")
    stack.measured["drain_s"] = time.monotonic() - began_s
    assert seen and seen[1] == httpx.codes.SERVICE_UNAVAILABLE, f"readiness did not fall while the stream ran: {seen}"
    assert finish == "length", f"the stream ended with {finish!r} after {left} more chunks"
    assert state["Status"] == "exited" and state["ExitCode"] == 0, state
    assert page.ended.wait(1), "an administrator's stream was still open"
    return f"/readyz fell with {left - seen[0]} chunks to come; all came; exit 0 after {stack.measured['drain_s']:.1f} s"


class _OpenPage:
    """What a page of the admin UI keeps open; `ended` once the server has ended it in good order."""

    def __init__(self, stack: Stack) -> None:
        self.ended = threading.Event()
        password = stack.secret("grafana_password")
        self._web = httpx.Client(base_url=stack.url, timeout=120.0)
        owner = {"name": "alice", "password": password}
        self._web.post("/api/v1/setup", json={"token": stack.in_container("cat", "/data/setup-token"), **owner}).raise_for_status()
        stack.until(lambda: "setup-token" not in stack.in_container("ls", "/data"), "the end of the setup token", 10)
        self._web.post("/api/v1/login", json=owner).raise_for_status()
        begun = threading.Event()
        threading.Thread(target=self._read, args=(begun,), daemon=True).start()
        assert begun.wait(30), "no live page"

    def _read(self, begun: threading.Event) -> None:
        with self._web.stream("GET", "/ui/live/engine") as page:
            page.raise_for_status()
            for _ in page.iter_lines():
                begun.set()
        self.ended.set()


def _tenant_with_a_key(stack: Stack) -> str:
    """Made by the command line in the container, while it serves."""
    stack.in_container("fairlane", "tenant", "create", "acme", "--tier", "interactive")
    stack.notes["acme"] = key = stack.in_container("fairlane", "key", "create", "acme")
    stack.until(lambda: stack.status("/v1/models", key) == httpx.codes.OK, "the new key", 10)
    return key


def check_a_restart_keeps_tenants_and_keys(stack: Stack) -> str:
    began_s = time.monotonic()
    stack.compose("up", "--detach", "appliance")
    stack.until_ready()
    stack.measured["warm_start_s"] = time.monotonic() - began_s
    assert stack.status("/v1/models", stack.notes["acme"]) == httpx.codes.OK, "the tenant's key"
    assert stack.status("/v1/models", stack.secret("api_key")) == httpx.codes.OK, "the first key"
    return f"ready after {stack.measured['warm_start_s']:.1f} s with programs from the cache; both keys are valid"


def check_data_of_the_previous_revision_comes_up_under_the_new_image(stack: Stack) -> str:
    """A backup before, as the documents say; serving refuses the old data; the one-shot migration brings it on."""
    stack.compose("stop", "appliance")
    previous = stack.one_shot("-c", DOWNGRADE, options=("--entrypoint=python",)).split()[-1]
    stack.one_shot("backup", BACKUP)
    refused = stack.docker.run("run", "--rm", f"--volume={stack.volume('data')}:/data", IMAGE, "serve", check=False)
    assert f"at revision {previous}" in refused and "fairlane migrate" in refused, refused
    stack.compose("up", "--detach", "appliance")  # with the one-shot `migrate` before it
    stack.until_ready()
    migrated = stack.compose("logs", "migrate")
    assert f"went from {previous} to revision" in migrated, migrated
    assert stack.status("/v1/models", stack.notes["acme"]) == httpx.codes.OK, "the tenant's key"
    return f"from {previous}: {migrated[migrated.rindex('the database went') :].strip()}"


def check_a_backup_brings_the_previous_revision_back(stack: Stack) -> str:
    """The way back: the backup of before the upgrade takes the data's place, for the image of before."""
    running = stack.docker.run("run", "--rm", f"--volume={stack.volume('data')}:/data", IMAGE, "restore", BACKUP, "--force", check=False)
    assert "in use by a running server" in running, running
    stack.in_container("fairlane", "tenant", "create", "after-the-backup")
    stack.compose("stop", "appliance")
    restored = stack.one_shot("restore", BACKUP, "--force")
    assert "next: fairlane migrate" in restored, restored
    stack.compose("up", "--detach", "appliance")
    stack.until_ready()
    tenants = stack.in_container("fairlane", "tenant", "list")
    assert "acme" in tenants and "after-the-backup" not in tenants, tenants
    assert stack.status("/v1/models", stack.notes["acme"]) == httpx.codes.OK, "the tenant's key"
    return "refused while it serves; then the tenants and keys are those of the backup"


def check_it_starts_without_any_network(stack: Stack) -> str:
    """Nothing is downloaded at start."""
    stack.compose("stop", "appliance")
    name = f"{stack.project}-offline"
    began_s = time.monotonic()
    volumes = [f"--volume={stack.volume('data')}:/data", f"--volume={stack.volume('cache')}:/cache"]
    secrets = [
        f"--volume={stack.secrets_dir}/key_pepper:/run/secrets/key_pepper:ro",
        "--env=FAIRLANE_KEY_PEPPER_FILE=/run/secrets/key_pepper",
    ]
    stack.docker.run("run", "--detach", "--name", name, "--network=none", "--read-only", *volumes, *secrets, IMAGE)
    try:
        stack.until(lambda: '"healthy"' in stack.docker.run("inspect", "--format", "{{json .State.Health.Status}}", name), "health", 300)
    finally:
        stack.docker.run("rm", "--force", "--volumes", name, check=False)
    return f"healthy after {time.monotonic() - began_s:.0f} s with --network none --read-only"


CHECKS_LASTING = (
    check_docker_stop_drains_a_running_stream,
    check_a_restart_keeps_tenants_and_keys,
    check_data_of_the_previous_revision_comes_up_under_the_new_image,
    check_a_backup_brings_the_previous_revision_back,
    check_it_starts_without_any_network,
)
