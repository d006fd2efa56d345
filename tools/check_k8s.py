"""The manifests of docker/k8s, as kustomize renders them, against the schemas of Kubernetes, KEDA and the Prometheus operator.

`python -m tools.check_k8s` in the environment of requirements/k8s.lock (`make k8s-check`) prints each finding and ends with 1 if there is
one. Unknown fields are findings. It needs kubectl, which renders; no cluster.
"""

# pyright: reportMissingImports=false

import argparse
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml
from cloudcoil.models.keda import v1alpha1 as keda
from cloudcoil.models.prometheus_operator import v1 as monitoring

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("docker/k8s/migrate", "docker/k8s/console", "docker/k8s")
VERSIONS = ("1.30", "1.33")
"""Of Kubernetes; `preStop` and all else is older."""
OPERATORS: dict[tuple[str, str], Any] = {
    ("keda.sh/v1alpha1", "ScaledObject"): keda.ScaledObject,
    ("monitoring.coreos.com/v1", "PrometheusRule"): monitoring.PrometheusRule,
    ("monitoring.coreos.com/v1", "ServiceMonitor"): monitoring.ServiceMonitor,
}


def rendered(folder: str) -> list[dict[str, Any]]:
    """What `kubectl apply -k` would send."""
    done = subprocess.run(["kubectl", "kustomize", str(ROOT / folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{folder}: {done.stderr}")
    return list(yaml.safe_load_all(done.stdout))


def findings(manifest: dict[str, Any]) -> Iterator[str]:
    """What a schema says against a manifest."""
    model = OPERATORS.get((manifest["apiVersion"], manifest["kind"]))
    if model is not None:
        try:
            read = model.model_validate(manifest).model_dump(mode="json", by_alias=True, exclude_unset=True)
        except ValueError as error:
            yield str(error)
            return
        yield from (f"{path} is no field of a {manifest['kind']}" for path in missing(manifest, read))
        return
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(manifest, version, strict=True)
        except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
            yield f"Kubernetes {version}: {str(error).partition(chr(10))[0]}"


def missing(given: object, read: object, path: str = "") -> Iterator[str]:
    """Paths of what was given and not read: a model leaves out what it does not know."""
    match given, read:
        case dict(), dict():
            for key, value in given.items():
                yield from missing(value, read[key], f"{path}.{key}") if key in read else (f"{path}.{key}",)
        case list(), list():
            for index, (one, other) in enumerate(zip(given, read, strict=True)):
                yield from missing(one, other, f"{path}[{index}]")
        case _:
            return


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.check_k8s", description=(__doc__ or "").splitlines()[0])
    parser.parse_args(arguments)
    manifests = [manifest for folder in FOLDERS for manifest in rendered(folder)]
    found = [f"{each['kind']} {each['metadata']['name']}: {finding}" for each in manifests for finding in findings(each)]
    print("\n".join(found) or f"{len(manifests)} manifests: fine")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
