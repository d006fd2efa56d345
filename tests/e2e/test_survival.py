"""The real engine is killed while it works; last in its folder, because the server is the session's."""

import json
import os
import signal

import httpx

from tests.appliance import Appliance
from tests.e2e.metrics import until


def engine_pids(appliance: Appliance) -> list[int]:
    return [json.loads(line)["pid"] for line in appliance.log().splitlines() if '"engine_started"' in line]


def test_a_killed_engine_ends_its_streams_with_an_error_and_is_back_by_itself(appliance: Appliance, client: httpx.Client) -> None:
    body = {"prompt": "Once upon a time", "max_tokens": 3_000, "stream": True, "ignore_eos": True}
    with client.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: ")
        os.kill(engine_pids(appliance)[-1], signal.SIGKILL)
        rest = list(lines)
    assert "event: error" in rest and any("engine_down" in line for line in rest)
    until(lambda: client.get("/readyz").status_code == 503)
    assert client.get("/livez").status_code == 200
    assert client.post("/v1/completions", json={"prompt": "x"}).status_code == 503
    until(lambda: client.get("/readyz").status_code == 200, timeout_s=300)
    assert client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}).status_code == 200
    assert len(engine_pids(appliance)) == 2
