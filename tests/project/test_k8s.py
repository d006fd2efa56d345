"""The manifests of docker/k8s: what they take from elsewhere, and what an operator relies on. Their schemas: `make k8s-check`."""

import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from appliance.settings import OPTIONS
from tests.observability.rules import scaling_triggers
from tools.prometheus_rule import OUT_PATH, prometheus_rule

ROOT = Path(__file__).resolve().parents[2]


@cache
def manifests() -> list[dict[str, Any]]:
    """What `kubectl apply -k docker/k8s` would send, the migration before it, and the console."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl, which renders them, is not installed (Debian 12 has none that is new enough)")
    folders = [ROOT / "docker" / "k8s" / name for name in ("migrate", "console", "")]
    texts = [subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=True).stdout for folder in folders]
    return [manifest for text in texts for manifest in yaml.safe_load_all(text)]


def of_kind(kind: str) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each for each in manifests() if each["kind"] == kind}


def pods() -> dict[str, dict[str, Any]]:
    """Pod specification by the name of the pod or of what makes it."""
    made = {name: each["spec"]["template"]["spec"] for name, each in (of_kind("Deployment") | of_kind("Job")).items()}
    return made | {name: each["spec"] for name, each in of_kind("Pod").items()}


def test_the_operators_rules_are_those_that_promtool_tests():
    assert OUT_PATH.read_text() == prometheus_rule(), "run: make k8s"


def test_every_dashboard_becomes_a_config_map():
    kept = {path.name: path.read_text() for path in (ROOT / "dashboards" / "json").glob("*.json")}
    found: dict[str, str] = {}
    for each in of_kind("ConfigMap").values():
        if each["metadata"].get("labels", {}).get("grafana_dashboard") == "1":
            found |= each["data"]
    assert found == kept


def test_a_pod_can_do_nothing_beyond_its_work():
    assert set(pods()) == {"fairlane-a100", "fairlane-batch", "fairlane-console", "fairlane-h200", "fairlane-migrate"}
    for name, pod in pods().items():
        (container,) = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 10001, name
        assert container["securityContext"]["readOnlyRootFilesystem"] and container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert pod["automountServiceAccountToken"] is False and pod["enableServiceLinks"] is False, name


def test_every_variable_of_a_pod_is_a_setting_and_every_secret_a_file():
    known = {option.env for option in OPTIONS}
    shared = {name for each in of_kind("ConfigMap").values() for name in each["data"] if not name.endswith(".json")}
    assert shared == {"FAIRLANE_TENANT_SHARES", "FAIRLANE_LOG_LEVEL"}
    for pod in pods().values():
        for variable in pod["containers"][0]["env"]:
            assert variable["name"].endswith("_FILE") and variable["value"].startswith("/run/secrets/"), variable
            shared.add(variable["name"].removesuffix("_FILE"))
    assert shared <= known


def test_a_replica_starts_slowly_is_ready_by_readyz_and_has_time_to_drain():
    for name, deployment in of_kind("Deployment").items():
        pod = deployment["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        startup = container["startupProbe"]
        assert startup["periodSeconds"] * startup["failureThreshold"] >= 1_200, name
        assert container["readinessProbe"]["httpGet"]["path"] == "/readyz" and container["livenessProbe"]["httpGet"]["path"] == "/livez"
        assert pod["terminationGracePeriodSeconds"] >= 30 + 5 + 10, "shutdown_grace_s, the preStop, and a last word"
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "1" and "cpu" not in container["resources"]["limits"]
    priorities = {name: each["value"] for name, each in of_kind("PriorityClass").items()}
    assert priorities["fairlane-interactive"] > priorities["fairlane-batch"]
    assert pods()["fairlane-batch"]["priorityClassName"] == "fairlane-batch"
    assert pods()["fairlane-h200"]["priorityClassName"] == pods()["fairlane-a100"]["priorityClassName"] == "fairlane-interactive"


def test_there_is_an_autoscaler_for_each_gpu_type_that_never_goes_to_zero():
    scalers = of_kind("ScaledObject")
    assert set(scalers) == set(of_kind("Deployment")) - {"fairlane-batch"}
    for name, scaler in scalers.items():
        spec = scaler["spec"]
        assert (spec["scaleTargetRef"]["name"], spec["minReplicaCount"], spec["maxReplicaCount"]) == (name, 2, 10)
        assert "replicas" not in of_kind("Deployment")[name]["spec"], "it would undo the autoscaler's number at each roll-out"
        depth, age = spec["triggers"]
        assert "fairlane_queue_depth" in depth["metadata"]["query"] and depth["metadata"]["threshold"] == "10"
        assert "fairlane_queue_oldest_seconds" in age["metadata"]["query"] and age["metricType"] == "Value"
    assert len(scaling_triggers()) == 2 * len(scalers)


def test_the_selectors_find_the_pods():
    for kind, component in (("Service", "fairlane"), ("PodDisruptionBudget", "fairlane-interactive")):
        selector = of_kind(kind)[component]["spec"]["selector"]
        wanted = selector.get("matchLabels", selector)
        found = [
            name for name, each in of_kind("Deployment").items() if wanted.items() <= each["spec"]["template"]["metadata"]["labels"].items()
        ]
        assert found == ["fairlane-a100", "fairlane-h200"], kind
