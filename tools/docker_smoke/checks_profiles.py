"""What is checked of the profiles pg, observability, tls, and of gpu what takes no card. Grafana is in no package registry: not started."""

import contextlib
import itertools
import json
import ssl
import subprocess
import time
from typing import Any

import httpx
import yaml
from openai import OpenAI

from tests.hub import TOKEN, serving_hub
from tools.docker_smoke.engine import run
from tools.docker_smoke.stack import COMPOSE_FILE, IMAGE, MODEL, ROOT, STAND_IN_FOLDER, Stack, free_port

STAND_INS = ("postgres", "prometheus", "alertmanager", "nginx")
STARTED = ("pg", "observability", "tls")
PULL_TIMEOUT_S = 60.0


def check_postgresql_serves_where_its_secrets_say_so(stack: Stack) -> str:
    """`make-secrets.sh --postgres`, then `up`: the migration waits for the database, and the appliance uses it."""
    images = ", ".join(f"{name} {_image(stack, name)}" for name in STAND_INS)
    stack.make_secrets("--postgres")
    _make_certificate(stack)
    stack.profiles = STARTED
    for name in ("TLS_PORT", "PROMETHEUS_PORT", "ALERTMANAGER_PORT"):
        stack.variables[name] = str(free_port())
    stack.variables["TLS_BIND"] = "127.0.0.1"
    stack.compose("up", "--detach", "--force-recreate", "appliance", *STAND_INS)
    stack.until_ready()
    assert "from empty to revision" in stack.compose("logs", "migrate"), "the migration of the new database"
    found = stack.in_container("fairlane", "doctor")
    assert "postgresql://postgres:5432/fairlane at revision" in found, found
    return images


def _image(stack: Stack, name: str) -> str:
    """The image that compose.yaml names is there: from a registry, or a stand-in of Debian's packages. Says which."""
    image = yaml.safe_load(COMPOSE_FILE.read_text())["services"][name]["image"]
    if stack.docker.has_image(image):
        return "was there"
    if stack.has_registry:
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            stack.docker.run("pull", "--quiet", image, timeout_s=PULL_TIMEOUT_S)
            return "pulled"
    stack.docker.run("build", "--target", name, "--tag", image, str(STAND_IN_FOLDER))
    return "of Debian's package"


def _make_certificate(stack: Stack) -> None:
    files = ["-keyout", str(stack.secrets_dir / "tls.key"), "-out", str(stack.secrets_dir / "tls.crt")]
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *files, *subject], stack.docker.environ)
    (stack.secrets_dir / "tls.key").chmod(0o444)


def check_a_backup_of_postgresql_is_made_and_restored_in_the_container(stack: Stack) -> str:
    """With the image's own pg_dump, which must not be older than the server."""
    stack.in_container("fairlane", "tenant", "create", "kept")
    said = stack.in_container("fairlane", "backup", "/data/pg-backup")
    stack.in_container("fairlane", "tenant", "create", "lost")
    stack.compose("stop", "appliance")
    stack.compose("run", "--rm", "--no-deps", "appliance", "restore", "/data/pg-backup", "--force")
    stack.compose("up", "--detach", "appliance")
    stack.until_ready()
    tenants = stack.in_container("fairlane", "tenant", "list")
    assert "kept" in tenants and "lost" not in tenants, tenants
    return said.partition(";")[0]


def check_tls_passes_each_token_on_and_tells_of_a_client_that_left(stack: Stack) -> str:
    context = ssl.create_default_context(cafile=str(stack.secrets_dir / "tls.crt"))
    url = f"https://localhost:{stack.variables['TLS_PORT']}"
    with httpx.Client(verify=context, timeout=60.0) as web:
        stack.until(lambda: _status(web, f"{url}/readyz") == httpx.codes.OK, "the proxy", 60)
        assert _status(web, f"{url}/metrics") == httpx.codes.NOT_FOUND, "metrics are not for everybody"
        client = OpenAI(base_url=f"{url}/v1", api_key=stack.secret("api_key"), http_client=web, max_retries=0)
        question: Any = {"model": MODEL, "messages": [{"role": "user", "content": "Tell a long story."}], "temperature": 0, "stream": True}
        arrived_s = [time.monotonic() for _ in client.chat.completions.create(**question, max_tokens=100, extra_body={"ignore_eos": True})]
        spread_s, gaps = arrived_s[-1] - arrived_s[0], len(arrived_s) - 1
        longest_s = max(later - earlier for earlier, later in itertools.pairwise(arrived_s))
        assert gaps > 50 and longest_s < spread_s / 2, f"{gaps} gaps in {spread_s:.2f} s, the longest {longest_s:.2f} s: held back"
        before = _cancelled(stack)
        with client.chat.completions.create(**question, max_tokens=1_500, extra_body={"ignore_eos": True}) as stream:
            next(iter(stream))
        stack.until(lambda: _cancelled(stack) > before, "the cancelled request", 30)
    return f"{gaps + 1} chunks over {spread_s:.1f} s; a client that left was cancelled"


def _status(web: httpx.Client, url: str) -> int:
    with contextlib.suppress(httpx.HTTPError):
        return web.get(url).status_code
    return 0


def _cancelled(stack: Stack) -> float:
    """Requests cancelled because their client left."""
    metrics = httpx.get(f"{stack.url}/metrics", headers={"Authorization": f"Bearer {stack.secret('metrics_key')}"}, timeout=10).text
    lines = [line for line in metrics.splitlines() if line.startswith("fairlane_cancellations_total{") and 'cause="disconnect"' in line]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def check_prometheus_in_its_container_scrapes_and_knows_rules_and_alertmanager(stack: Stack) -> str:
    url = f"http://127.0.0.1:{stack.variables['PROMETHEUS_PORT']}/api/v1"

    def ask(path: str) -> Any:
        with contextlib.suppress(httpx.HTTPError, ValueError):
            return httpx.get(f"{url}{path}", timeout=5).json().get("data")
        return None

    def is_up() -> bool:
        found = ask('/query?query=up{job="fairlane"}')
        return bool(found and found["result"] and found["result"][0]["value"][1] == "1")

    stack.until(is_up, "a scrape", 120)
    stack.until(lambda: (ask("/alertmanagers") or {}).get("activeAlertmanagers"), "the Alertmanager", 60)
    rules = [rule for group in ask("/rules")["groups"] for rule in group["rules"]]
    wanted = sum(len(group["rules"]) for path in (ROOT / "alerts").glob("*.yaml") for group in yaml.safe_load(path.read_text())["groups"])
    assert len(rules) == wanted and not [rule for rule in rules if rule.get("lastError")], f"{len(rules)} of {wanted} rules"
    return f"{wanted} rules"


def check_the_models_service_fetches_into_its_volume_with_the_token(stack: Stack) -> str:
    """Of profile gpu, from the CPU image and a hub on this machine: to fetch takes no card."""
    network = json.loads(stack.docker.run("network", "inspect", f"{stack.project}_default"))[0]
    token = stack.secrets_dir / "hf_token"
    token.unlink()
    token.write_text(TOKEN)
    stack.variables |= {"TAG": "cpu", "MODEL": "owner/gated"}
    with serving_hub(stack.scratch / "hub", network["IPAM"]["Config"][0]["Gateway"]) as hub:
        said = stack.compose("run", "--rm", "--no-deps", "-e", f"HF_ENDPOINT={hub.url}", "model", profiles=("gpu",))
    assert "/models/owner/gated" in said, said
    volume = f"--volume={stack.volume('models')}:/models:ro"
    return stack.docker.run("run", "--rm", "--read-only", volume, IMAGE, "model", "info", "/models/owner/gated").splitlines()[0]


CHECKS_PROFILES = (
    check_postgresql_serves_where_its_secrets_say_so,
    check_a_backup_of_postgresql_is_made_and_restored_in_the_container,
    check_tls_passes_each_token_on_and_tells_of_a_client_that_left,
    check_prometheus_in_its_container_scrapes_and_knows_rules_and_alertmanager,
    check_the_models_service_fetches_into_its_volume_with_the_token,
)
