"""The served SmolLM2 with batch on an engine of its own, which is killed while the other one streams."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.appliance import Appliance, start_appliance
from tests.e2e.conftest import FLAGS
from tests.e2e.metrics import metric, until
from tests.e2e.test_survival import engine_pids

STORY: dict[str, Any] = {"prompt": "Once upon a time", "temperature": 0, "ignore_eos": True, "stream": True}
USAGE: dict[str, Any] = {"stream_options": {"include_usage": True}}


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[Appliance]:
    with start_appliance(tmp_path, *FLAGS, "--engine-lanes", "fast,slow;batch", timeout_s=400) as running:
        yield running


def test_batch_on_its_own_engine_dies_and_comes_back_while_a_fast_stream_goes_on(replicas: Appliance) -> None:
    with httpx.Client(base_url=replicas.base_url, headers=replicas.headers, timeout=120) as client:

        def decoded(engine: str) -> float:
            return metric(client, "step_tokens_total", engine=engine, kind="decode")

        batch = {"prompt": "The capital of France is", "temperature": 0, "max_tokens": 8, "lane": "batch"}
        interactive = client.post("/v1/completions", json={**batch, "lane": "slow"}).json()
        before = decoded("fast-slow")
        assert before > 0 == decoded("batch")
        assert client.post("/v1/completions", json=batch).json()["choices"] == interactive["choices"]
        assert decoded("batch") > 0 and decoded("fast-slow") == before
        niceness = [os.getpriority(os.PRIO_PROCESS, pid) for pid in engine_pids(replicas)]
        assert niceness[1] == min(19, niceness[0] + 10)

        with (
            client.stream("POST", "/v1/completions", json={**STORY, **USAGE, "lane": "fast", "max_tokens": 400}) as fast,
            client.stream("POST", "/v1/completions", json={**STORY, "lane": "batch", "max_tokens": 2_000}) as doomed,
        ):
            fast_lines, doomed_lines = fast.iter_lines(), doomed.iter_lines()
            assert next(fast_lines).startswith("data: ") and next(doomed_lines).startswith("data: ")
            os.kill(engine_pids(replicas)[1], signal.SIGKILL)
            assert "event: error" in list(doomed_lines)
            refused = client.post("/v1/completions", json=batch)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_down") and refused.headers["retry-after"] == "5"
            ready = client.get("/readyz")
            assert (ready.status_code, ready.json()["status"]) == (200, "degraded") and "lane batch" in ready.json()["reason"]
            data = [line.removeprefix("data: ") for line in fast_lines if line.startswith("data: ")]
            assert data[-1] == "[DONE]" and json.loads(data[-2])["usage"]["completion_tokens"] == 400

        until(lambda: client.get("/readyz").json()["status"] == "ready", timeout_s=240)
        assert client.post("/v1/completions", json=batch).json()["choices"] == interactive["choices"]
        assert len(engine_pids(replicas)) == 3 and metric(client, "accounting_mismatch_total") == 0
