"""`GET /v1/requests/{id}/explain` over HTTP, with an engine that does one row at a time."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.domain.access.principal import Scope
from appliance.domain.explain.service import ExplainService
from appliance.text.model import TextModel
from engine.wire import ModelCard
from tests.e2e.metrics import until
from tests.inference.conftest import text_answer
from tests.inference.harness import HEADERS, KEY, OTHER_KEY, House, key, snapshot, start_house

ADMIN = {"Authorization": "Bearer fl-admin-89abcdef0123"}
OTHER = {"Authorization": f"Bearer {OTHER_KEY}"}
STEP_S = 0.01


@pytest.fixture(scope="module")
def busy_house(export: Path, card: ModelCard, model: TextModel) -> Iterator[House]:
    access = snapshot(**{"fl-admin-89abcdef0123": key("default", Scope.ADMIN_READ)})
    with start_house(export, card, text_answer(model), access=access) as house:
        house.set_engine(step_s=STEP_S, max_rows=1)
        yield house


def explained(house: House, request_id: str, headers: dict[str, str] = HEADERS) -> dict[str, Any]:
    answer = house.client.get(f"/v1/requests/{request_id}/explain", headers=headers)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert sum(part["seconds"] for part in body["parts"]) == pytest.approx(body["total_s"], abs=1e-3)
    return body


def test_the_victim_of_a_noisy_tenant_reads_how_much_it_cost_and_an_administrator_reads_who_it_was(busy_house: House) -> None:
    noisy = [threading.Thread(target=lambda: busy_house.post("/v1/completions", {"prompt": "x"}, headers=OTHER)) for _ in range(3)]
    for thread in noisy:
        thread.start()
    busy_house.until(lambda: len(busy_house.engine.queued) == 2)
    answer = busy_house.post("/v1/completions", {"prompt": "x", "max_tokens": 4})
    for thread in noisy:
        thread.join()
    request_id = answer.headers["x-request-id"]
    mine, admins = explained(busy_house, request_id), explained(busy_house, request_id, ADMIN)
    queued = {part["tenant"]: part["seconds"] for part in admins["parts"] if part["name"] == "queue"}
    assert queued["other"] > 0.6 * admins["total_s"]
    assert "went to tenant other, most of that while it was waiting in the queue" in admins["verdict"]
    service = ExplainService(busy_house.telemetry, busy_house.backend.report_of, names_tenants=True)
    named = asyncio.run_coroutine_threadsafe(service.explain(request_id, "default"), busy_house.loop).result(10)
    assert named.verdict == admins["verdict"]
    assert "another tenant" in mine["verdict"] and "other'" not in str(mine["parts"])


def test_the_body_s_id_and_the_header_s_id_are_the_same_request(busy_house: House) -> None:
    answer = busy_house.post("/v1/completions", {"prompt": "x", "max_tokens": 3})
    by_header, by_body = explained(busy_house, answer.headers["x-request-id"]), explained(busy_house, answer.json()["id"])
    assert by_header == by_body and by_body["generated_tokens"] == 3 and by_body["state"] == "completed"
    assert by_body["ttft_target_s"] is None and len(by_body["chunks"]) == 1


def test_a_running_request_is_explained_so_far(busy_house: House) -> None:
    body = {"prompt": "x", "stream": True, "max_tokens": 18}
    with busy_house.client.stream("POST", "/v1/completions", json=body) as stream:
        lines = stream.iter_lines()
        next(lines)
        busy_house.set_engine(hold=True)
        request_id = stream.headers["x-request-id"]
        so_far = explained(busy_house, request_id)
        assert so_far["state"] == "running" and so_far["verdict"].startswith("Running for ")
        stream.close()
        busy_house.until(lambda: busy_house.backend.num_live == 0)
    busy_house.set_engine(hold=False)
    ended = explained(busy_house, request_id)
    assert ended["state"] == "cancelled" and ended["verdict"].startswith("Cancelled (disconnect) after ")
    assert ended["total_s"] > so_far["total_s"]


def test_a_wait_for_the_next_token_is_a_gap_while_it_goes_on_and_of_the_report_when_nobody_waits_any_more(busy_house: House) -> None:
    with busy_house.client.stream("POST", "/v1/completions", json={"prompt": "x", "stream": True, "max_tokens": 18}) as stream:
        lines = stream.iter_lines()
        for _ in range(12):
            next(lines)
        busy_house.set_engine(hold=True)
        request_id = stream.headers["x-request-id"]
        until(lambda: bool(explained(busy_house, request_id)["gaps"]))
        (gap,) = explained(busy_house, request_id)["gaps"]
        stream.close()
        busy_house.until(lambda: busy_house.backend.num_live == 0)
    busy_house.set_engine(hold=False)
    report = busy_house.telemetry.archive.find(request_id)
    assert report is not None and report.worst_gap_s >= gap["seconds"] > 2 * STEP_S


def test_a_refused_request_is_explained_with_what_it_was_told(busy_house: House) -> None:
    refused = busy_house.post("/v1/completions", {"prompt": "x", "max_tokens": 100_000})
    answer = explained(busy_house, refused.headers["x-request-id"])
    assert refused.status_code == 400 and answer["state"] == "rejected"
    assert refused.json()["error"]["message"][:300] in answer["verdict"]


@pytest.mark.parametrize(("asked", "headers"), [("other's", OTHER), ("never", HEADERS), ("never", ADMIN)])
def test_what_is_not_remembered_or_another_s_is_not_found_and_the_text_says_how_much_is_kept(
    busy_house: House, asked: str, headers: dict[str, str]
) -> None:
    own = busy_house.post("/v1/completions", {"prompt": "x", "max_tokens": 1}).headers["x-request-id"]
    answer = busy_house.client.get(f"/v1/requests/{own if asked != 'never' else 'req_0'}/explain", headers=headers)
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "request_not_found"
    assert "newest 8192 steps" in answer.json()["error"]["message"]


@pytest.mark.parametrize("headers", [{"Authorization": ""}, {"Authorization": f"Bearer {KEY}x"}])
def test_without_a_valid_key_nothing_is_explained(busy_house: House, headers: dict[str, str]) -> None:
    assert busy_house.client.get("/v1/requests/req_0/explain", headers=headers).status_code == 401
