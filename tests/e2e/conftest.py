"""One real server for the session: SmolLM2, four programs, a common prefix that two tenants share."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest

from tests.appliance import SMALL_BUCKETS, Appliance, start_appliance

GROUP = "acme"
SYSTEM_PROMPT = "You are the assistant of ACME. " + " ".join(f"Rule {n}: answer question {n} in one short sentence." for n in range(130))
FLAGS = (*SMALL_BUCKETS, "--max-num-seqs", "16", "--max-model-len", "4096", "--num-gpu-blocks-override", "2048")


@pytest.fixture(scope="session")
def appliance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    folder = tmp_path_factory.mktemp("appliance")
    prefixes = folder / "prefixes.yaml"
    prefixes.write_bytes(msgspec.yaml.encode([{"system": SYSTEM_PROMPT, "trust_group": GROUP}]))
    with start_appliance(folder / "data", *FLAGS, "--common-prefixes", str(prefixes), timeout_s=400) as running:
        yield running


@pytest.fixture
def client(appliance: Appliance) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=appliance.base_url, headers=appliance.headers, timeout=120) as client:
        yield client


@pytest.fixture(scope="session")
def export(appliance: Appliance) -> Path:
    return appliance.data_dir / "model"
