"""The Locust file, run by Locust against a served process: it must keep working as it is documented."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.appliance import SMALL_BUCKETS, Appliance, start_appliance
from tests.tiny_models import write_servable_model

LOCUSTFILE = Path(__file__).parent / "locustfile.py"


@pytest.fixture(scope="module")
def appliance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    folder = tmp_path_factory.mktemp("load")
    model = write_servable_model(folder / "model")
    with start_appliance(
        folder / "data", *SMALL_BUCKETS, "--max-num-seqs", "16", "--served-model-name", "tiny", model=str(model)
    ) as running:
        yield running


@pytest.fixture(scope="module")
def keys(appliance: Appliance) -> dict[str, str]:
    """A gateway's key, and one a tenant."""
    with httpx.Client(base_url=appliance.base_url, headers=appliance.admin_headers, timeout=30) as admin:
        for slug in ("tenant-a", "tenant-b"):
            admin.post("/api/v1/tenants", json={"slug": slug}).raise_for_status()
        made = {
            name: admin.post(f"/api/v1/tenants/{slug}/keys", json={"name": "load", "scopes": ["inference", *scopes]})
            for name, slug, scopes in (
                ("TENANT_GATEWAY_KEY", "default", ["gateway"]),
                ("TENANT_A_KEY", "tenant-a", []),
                ("TENANT_B_KEY", "tenant-b", []),
            )
        }
        return {name: answer.raise_for_status().json()["key"] for name, answer in made.items()}


def run_locust(appliance: Appliance, keys: dict[str, str]) -> dict[tuple[str, str], dict]:
    """Five seconds of four users; Locust's statistics by method and name."""
    options = ("--headless", "-u", "4", "-r", "4", "-t", "5s", "--stop-timeout", "20", "--json", "--exit-code-on-error", "1")
    command = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--host", appliance.base_url, *options]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TENANT_")}
    done = subprocess.run(
        command, env={**environment, "TENANT_MODEL": "tiny", **keys}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return {(row["method"], row["name"]): row for row in json.loads(done.stdout)}


@pytest.mark.parametrize("names", [("TENANT_GATEWAY_KEY",), ("TENANT_A_KEY", "TENANT_B_KEY")])
def test_locust_measures_both_tenants_under_their_names(appliance: Appliance, keys: dict[str, str], names: tuple[str, ...]):
    found = run_locust(appliance, {name: keys[name] for name in names})
    assert set(found) == {(method, tenant) for method in ("POST", "TTFT") for tenant in ("TenantA", "TenantB")}
    assert found["POST", "TenantA"]["num_requests"] > found["POST", "TenantB"]["num_requests"] > 0
    assert all(row["num_failures"] == 0 for row in found.values())
    with httpx.Client(base_url=appliance.base_url, headers=appliance.admin_headers, timeout=30) as admin:
        text = admin.get("/metrics").text
    for slug, tenant in (("tenant-a", "TenantA"), ("tenant-b", "TenantB")):
        lines = [line for line in text.splitlines() if line.startswith("fairlane_requests_total") and f'tenant="{slug}"' in line]
        completed = sum(float(line.rpartition(" ")[2]) for line in lines if 'outcome="completed"' in line)
        assert completed >= found["POST", tenant]["num_requests"]


def test_without_a_key_locust_says_which_variable_to_set(appliance: Appliance):
    command = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--host", appliance.base_url, "--headless", "-u", "1", "-t", "2s"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TENANT_")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert "set TENANT_GATEWAY_KEY, or TENANT_" in done.stderr + done.stdout


def test_a_failure_has_the_servers_words(appliance: Appliance):
    command = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--host", appliance.base_url, "--headless", "-u", "1", "-t", "2s"]
    environment = os.environ | {"TENANT_MODEL": "tiny", "TENANT_GATEWAY_KEY": "no-such-key"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    with httpx.Client(base_url=appliance.base_url, headers={"Authorization": "Bearer no-such-key"}, timeout=30) as client:
        answer = client.post("/v1/completions", json={"model": "tiny", "prompt": "x"})
    assert f"status {answer.status_code}: {answer.json()['error']['message']}" in done.stderr + done.stdout
