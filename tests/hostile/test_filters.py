"""Every question that a list can be asked: a value that nothing has is told, and never answered as if there were nothing."""

from typing import Any

import httpx
import pytest

from tests.hostile.conftest import ADMIN_HEADERS
from tests.hostile.test_attacks import error_of
from tests.inference.test_serve import Served

NAMES = {"slug": "default", "name": "batch", "key_id": "key_none", "admin_id": "adm_none"}
"""For the path."""
ANY_TEXT = {("/api/v1/tenants", "after"), ("/api/v1/tenants", "search")}
"""A place in the order, and a text that is looked for: each value has an answer."""


@pytest.fixture(scope="module")
def questions(served: Served) -> list[tuple[str, dict[str, Any]]]:
    """Path and description of each query parameter of each route that is read."""
    paths: dict[str, Any] = httpx.get(served.url + "/schema/openapi.json").json()["paths"]
    asked = [(path, parameter) for path, methods in paths.items() for parameter in methods.get("get", {}).get("parameters", ())]
    return [(path, parameter) for path, parameter in asked if parameter["in"] == "query"]


def ask(served: Served, path: str, name: str, value: str) -> httpx.Response:
    where = "/debug/queue" if path == "/debug/{name}" else path.format(**NAMES)
    return httpx.get(served.url + where, params={name: value}, headers=ADMIN_HEADERS, timeout=20)


def test_a_filter_whose_value_nothing_has_is_refused_by_name(served: Served, questions: list[tuple[str, dict[str, Any]]]) -> None:
    assert len(questions) >= 18
    for path, parameter in questions:
        name = parameter["name"]
        answer = ask(served, path, name, "no-such")
        if (path, name) in ANY_TEXT:
            assert answer.status_code == 200
            continue
        error = error_of(answer)
        assert error["param"] == name and len(error["message"]) > 20, (path, error)


def test_a_page_is_of_a_size_that_was_documented(served: Served, questions: list[tuple[str, dict[str, Any]]]) -> None:
    sized = [(path, parameter) for path, parameter in questions if parameter["name"] == "limit"]
    assert len(sized) >= 4
    for path, parameter in sized:
        most = parameter["schema"]["maximum"]
        for value in ("0", "-1", str(most + 1), "9" * 30, "1.5", "", "\u0661"):
            assert error_of(ask(served, path, "limit", value))["param"] == "limit", (path, value)
        assert ask(served, path, "limit", str(most)).status_code == 200
