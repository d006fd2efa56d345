"""The rule files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
ALERTS, RECORDS = ROOT / "alerts" / "alerts.yaml", ROOT / "alerts" / "recording.yaml"


@dataclass(frozen=True, slots=True)
class Rule:
    """`name` is the alert's, or the recorded series'."""

    name: str
    expr: str
    body: dict[str, Any]


def rules_of(path: Path) -> list[Rule]:
    """All rules of a file."""
    groups = yaml.safe_load(path.read_text())["groups"]
    return [Rule(rule.get("alert") or rule["record"], rule["expr"], rule) for group in groups for rule in group["rules"]]


def scaling_triggers() -> list[tuple[str, dict[str, str]]]:
    """Autoscaler and settings of each of its triggers (docker/k8s/scaling.yaml)."""
    scalers = list(yaml.safe_load_all((ROOT / "docker" / "k8s" / "scaling.yaml").read_text()))
    return [(scaler["metadata"]["name"], trigger["metadata"]) for scaler in scalers for trigger in scaler["spec"]["triggers"]]
