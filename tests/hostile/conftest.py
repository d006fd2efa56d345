"""A served process with a fake engine, shared by all hostile tests: whatever they send, it must live on."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.inference.test_serve import ADMIN, HEADERS, Served, serving

ADMIN_HEADERS = {"Authorization": f"Bearer {ADMIN}"}


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory, export: Path) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("hostile"), export, "log_format=json", "refusals_per_s=0") as each:
        yield each


@pytest.fixture(scope="session")
def admin(served: Served) -> Iterator[httpx.Client]:
    """The administration API."""
    with httpx.Client(base_url=served.url + "/api/v1", headers=ADMIN_HEADERS, timeout=20) as client:
        yield client


@pytest.fixture(scope="session")
def client(served: Served) -> Iterator[httpx.Client]:
    """The inference API with the first key."""
    with httpx.Client(base_url=served.url, headers=HEADERS, timeout=20) as client:
        yield client
