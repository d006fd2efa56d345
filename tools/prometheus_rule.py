"""The PrometheusRule of docker/k8s, made of alerts/*.yaml: what the Prometheus operator loads is what promtool tests.

`python -m tools.prometheus_rule` writes it; a test compares.
"""

import argparse
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
RULE_FILES = (ROOT / "alerts" / "recording.yaml", ROOT / "alerts" / "alerts.yaml")
OUT_PATH = ROOT / "docker" / "k8s" / "prometheusrule.yaml"
HEAD = "# Made of alerts/*.yaml by `make k8s`; do not edit (a test compares).\n"


def prometheus_rule() -> str:
    """The manifest's text."""
    groups = [group for path in RULE_FILES for group in yaml.safe_load(path.read_text())["groups"]]
    manifest = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "fairlane"},
        "spec": {"groups": groups},
    }
    return HEAD + yaml.safe_dump(manifest, sort_keys=False, allow_unicode=True, width=130)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.prometheus_rule", description=(__doc__ or "").splitlines()[0])
    parser.parse_args(arguments)
    try:
        OUT_PATH.write_text(prometheus_rule())
    except OSError as error:
        print(f"{OUT_PATH} can not be written: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
