"""Schemathesis over the served OpenAPI document: whatever fits it, and much that does not, gets a documented answer and no 500.

Examples are bounded so that all routes take less than a minute; the seed is fixed, so that a failure comes again.
"""

from typing import Any

import httpx
import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode

from tests.hostile.conftest import ADMIN_HEADERS
from tests.inference.test_serve import HEADERS, Served

EXAMPLES_PER_ROUTE = 20
EXAMPLES_WITHOUT_INPUT = 3
"""Of routes that take neither parameters nor a body: one request is like another but for its headers."""
SETTINGS = hypothesis.settings(
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def known(admin: httpx.Client) -> dict[str, str]:
    """Names that exist, for path parameters: random ones would only ever be 404. Outputs are short, so that answers are."""
    unlimited = {"max_concurrency": None, "max_queued": None, "output_caps": 4}
    admin.patch("/tenants/default", json={"overrides": unlimited}).raise_for_status()
    admin.post("/tenants", json={"slug": "victim", "tier": "batch"}).raise_for_status()
    key = admin.post("/tenants/victim/keys", json={"name": "victim"}).raise_for_status().json()
    return {"slug": "victim", "key_id": key["id"], "name": "batch"}


def routes(served: Served) -> list[Any]:
    """All operations of the served document."""
    schema: Any = schemathesis.openapi.from_url(served.url + "/schema/openapi.json")
    return [result.ok() for result in schema.get_all_operations()]


def check(operation: Any, case: Case, headers: dict[str, str]) -> None:
    """Send a case; the answer is no defect of ours, is documented, and errors have the one shape."""
    response = case.call(headers={**(case.headers or {}), **headers}, timeout=20)
    documented = set(operation.definition.raw["responses"])
    told = f"{operation.method} {operation.path}: {response.status_code} {response.text[:300]} for {case.as_curl_command()[:600]}"
    assert response.status_code not in (500, 501, 502, 504), told
    assert str(response.status_code) in documented | {"404", "405"}, told
    if response.status_code >= 400 and "/v1/" in operation.path:
        assert set(response.json()["error"]) >= {"message", "type", "param", "code"}, told


def probe(operation: Any, headers: dict[str, str], names: dict[str, str]) -> None:
    """Send what fits the document and what breaks it, to names that exist and to others."""
    cases = st.one_of([operation.as_strategy(generation_mode=mode) for mode in GenerationMode])

    takes_input = any(operation.definition.raw.get(name) for name in ("parameters", "requestBody"))
    number = EXAMPLES_PER_ROUTE if takes_input else EXAMPLES_WITHOUT_INPUT

    @hypothesis.settings(SETTINGS, max_examples=number)
    @hypothesis.given(case=cases, exists=st.booleans())
    def ask(case: Case, exists: bool) -> None:
        if exists:
            case.path_parameters.update(names)
        check(operation, case, headers)

    ask()


def test_no_route_answers_500_whatever_is_sent(served: Served, known: dict[str, str]) -> None:
    operations = routes(served)
    assert len(operations) >= 24
    for operation in operations:
        headers = ADMIN_HEADERS if operation.path.startswith("/api/v1") else HEADERS
        probe(operation, headers, {name: value for name, value in known.items() if f"{{{name}}}" in operation.path})
    assert served.ready() == (200, "ready")
    assert "unexpected_error" not in served.log()
