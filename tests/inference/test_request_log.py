"""The request log: one line a request whatever came of it, its time split into pieces that add up, and a short form for terminals."""

import io
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest
import structlog

from appliance.logs import LogLevel, set_up_logs, shorten_request
from appliance.terminal import Terminal
from tests.inference.test_serve import ADMIN, HEADERS, serving, until

PIECES = ("queue_ms", "prefill_ms", "decode_ms", "write_ms")


def test_every_request_has_one_line_of_json_with_its_time_and_no_text(tmp_path: Path, export: Path) -> None:
    with serving(tmp_path, export, "log_format=json") as served:

        def lines() -> dict[str, dict[str, Any]]:
            found = [json.loads(line) for line in served.log().splitlines() if '"event":"request"' in line]
            by_id = {line["request_id"]: line for line in found}
            assert len(by_id) == len(found), "one line a request"
            return by_id

        body = {"prompt": "a secret prompt", "max_tokens": 5}
        whole = httpx.post(served.url + "/v1/completions", json=body, headers=HEADERS)
        streamed = httpx.post(served.url + "/v1/completions", json={**body, "stream": True}, headers=HEADERS)
        refused = httpx.post(served.url + "/v1/completions", json={"prompt": ""}, headers=HEADERS)
        nobody = httpx.post(served.url + "/v1/completions", json=body)
        with closing(served.stream(2_000)) as tokens:  # pyright: ignore[reportArgumentType]
            next(tokens)
        until(lambda: len(lines()) == 5, served.log)
        by_id = lines()
        outcomes = [by_id[answer.headers["x-request-id"]]["outcome"] for answer in (whole, streamed, refused, nobody)]
        assert outcomes == ["completed", "completed", "rejected", "rejected"]
        assert sorted(line["outcome"] for line in by_id.values()) == ["cancelled", "completed", "completed", "rejected", "rejected"]
        for line in by_id.values():
            if line["outcome"] == "rejected":
                assert not set(PIECES) & set(line) and line["total_ms"] >= 0
            else:
                assert sum(line[piece] for piece in PIECES) == pytest.approx(line["total_ms"], abs=0.01)
                assert line["tenant"] == "default" and line["lane"] in ("fast", "slow")
        assert by_id[streamed.headers["x-request-id"]]["decode_ms"] > 10  # 4 more tokens at 5 ms
        assert "secret" not in served.log()


def test_a_request_of_a_suspended_tenant_is_told_as_that_tenants(tmp_path: Path, export: Path) -> None:
    with serving(tmp_path, export, "log_format=json") as served:
        admin = {"Authorization": f"Bearer {ADMIN}"}
        assert httpx.patch(served.url + "/api/v1/tenants/default", json={"status": "suspended"}, headers=admin).status_code == 200
        refused = httpx.post(served.url + "/v1/completions", json={"prompt": "x"}, headers=HEADERS)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "tenant_suspended")

        def line() -> dict[str, Any] | None:
            found = [json.loads(line) for line in served.log().splitlines() if '"event":"request"' in line]
            return found[0] if found else None

        until(lambda: line() is not None, served.log)
        assert (line() or {})["tenant"] == "default"

        def usage() -> list[dict[str, Any]]:
            return httpx.get(served.url + "/api/v1/usage", headers=admin).json()["usage"]

        until(lambda: bool(usage()), served.log)
        assert [(row["tenant"], row["outcome"], row["requests"]) for row in usage()] == [("default", "rejected", 1)]


def test_the_level_changes_while_it_runs_is_audited_and_no_level_shows_text(tmp_path: Path, export: Path) -> None:
    with serving(tmp_path, export, "log_format=json") as served:
        admin = {"Authorization": f"Bearer {ADMIN}"}

        def lines_of_a_request() -> list[str]:
            """Names of the lines that carry its id."""
            body = {"prompt": "a secret prompt", "max_tokens": 3}
            request_id = httpx.post(served.url + "/v1/completions", json=body, headers=HEADERS).headers["x-request-id"]
            httpx.post(served.url + "/v1/completions", headers=HEADERS)  # whatever the first one wrote, it is there by now
            return [json.loads(line)["event"] for line in served.log().splitlines() if f'"request_id":"{request_id}"' in line]

        def set_level(level: str) -> httpx.Response:
            return httpx.put(served.url + "/api/v1/log-level", json={"level": level}, headers=admin)

        assert lines_of_a_request() == ["request"]
        assert set_level("debug").json() == {"level": "debug"}
        assert lines_of_a_request() == ["submitted", "request"]
        assert set_level("error").status_code == 200 and lines_of_a_request() == []
        assert httpx.get(served.url + "/api/v1/log-level", headers=admin).json() == {"level": "error"}
        refused = set_level("loud")
        assert refused.status_code == 400 and "loud" in refused.text
        events = httpx.get(served.url + "/api/v1/audit?target=log-level", headers=admin).json()["events"]
        assert [(event["before"]["level"], event["after"]["level"]) for event in events] == [("debug", "error"), ("info", "debug")]
        assert "secret" not in served.log()


def test_prompts_are_logged_where_a_flag_says_so_and_then_at_level_debug_only(tmp_path: Path, export: Path) -> None:
    with serving(tmp_path, export, "log_format=json", "log_prompts=true") as served:
        admin = {"Authorization": f"Bearer {ADMIN}"}
        chat = {"messages": [{"role": "user", "content": "a secret question"}], "max_tokens": 2}

        def prompts() -> list[list[str]]:
            """Of all requests so far."""
            httpx.post(served.url + "/v1/chat/completions", json=chat, headers=HEADERS).raise_for_status()
            httpx.post(served.url + "/v1/completions", json={"prompt": ["a secret", "plan"], "max_tokens": 2}, headers=HEADERS)
            return [json.loads(line)["prompts"] for line in served.log().splitlines() if '"prompts":' in line]

        assert prompts() == [] and "secret" not in served.log() and "prompts_are_logged" in served.log()
        assert httpx.put(served.url + "/api/v1/log-level", json={"level": "debug"}, headers=admin).status_code == 200
        [[conversation], plain] = prompts()
        assert "a secret question" in conversation and plain == ["a secret", "plan"]


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal() -> Iterator[FakeTerminal]:
    before = structlog.get_config()
    terminal = FakeTerminal()
    yield terminal
    structlog.configure(**before)


@pytest.mark.parametrize("format", ["console", "json"])
def test_a_traceback_shows_no_values(terminal: FakeTerminal, format: Literal["console", "json"]) -> None:
    set_up_logs(LogLevel("info"), format, Terminal(lambda: terminal))

    def fail(prompt: str) -> None:
        raise ValueError(len(prompt))

    try:
        fail("a sec" + "ret prompt")
    except ValueError as error:
        structlog.get_logger("test").error("unexpected_error", exc_info=error)
    assert "ValueError: 15" in terminal.getvalue() and "secret" not in terminal.getvalue()


def test_on_a_terminal_a_request_is_a_short_sentence() -> None:
    times = {"queue_ms": 1.2, "prefill_ms": 30.4, "decode_ms": 250.6, "write_ms": 0.2, "total_ms": 282.4}
    done = {"event": "request", "request_id": "req_1", "tenant": "acme", "lane": "fast", "outcome": "completed", "status": 200}
    line = shorten_request(None, "info", {**done, **times, "prompt_tokens": 12, "generated_tokens": 7, "level": "info"})
    words = "acme fast completed 200 12+7 tokens 282 ms (queue 1, prefill 30, decode 251, write 0) req_1"
    assert line == {"event": words, "level": "info"}
    refused = {"event": "request", "request_id": "req_2", "lane": "none", "outcome": "rejected", "rejection": "rate_tokens", "status": 429}
    assert shorten_request(None, "info", {**refused, "total_ms": 0.6}) == {"event": "- none rejected rate_tokens 429 1 ms req_2"}
    assert shorten_request(None, "info", {"event": "ready", "model": "m"}) == {"event": "ready", "model": "m"}
