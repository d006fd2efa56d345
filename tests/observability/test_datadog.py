"""The Datadog agent's configuration: it asks where we answer, and takes every family under a name without our prefix."""

import re
import urllib.parse
from typing import Any

import pytest
import yaml

from appliance.settings import Settings
from appliance.telemetry.families import FAMILIES, Family
from tests.observability.names import misnamed
from tests.observability.rules import ROOT


@pytest.fixture(scope="module")
def instance() -> dict[str, Any]:
    [instance] = yaml.safe_load((ROOT / "docs" / "datadog.yaml").read_text())["instances"]
    return instance


def test_the_agent_asks_a_server_with_default_settings_on_its_own_host(instance: dict[str, Any]) -> None:
    endpoint = urllib.parse.urlsplit(instance["openmetrics_endpoint"])
    assert (endpoint.hostname, endpoint.port) == (Settings().host, Settings().port)
    assert misnamed(f"`GET {endpoint.path}`") == []


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.full_name)
def test_the_agent_takes_every_family(instance: dict[str, Any], family: Family) -> None:
    prefix = instance["raw_metric_prefix"]
    assert family.full_name.startswith(prefix) and instance["namespace"] == prefix.rstrip("_")
    assert any(re.search(f"^(?:{pattern})$", family.full_name.removeprefix(prefix)) for pattern in instance["metrics"])
