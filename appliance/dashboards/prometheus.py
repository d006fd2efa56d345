"""Answers from a Prometheus over its HTTP API, with a time limit, a size limit, and errors that say what to do."""

import asyncio
import math
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from typing import Any

import msgspec

from appliance.dashboards.metrics import NoAnswer, Reach
from appliance.promql.grid import Grid
from appliance.promql.values import Series

TIMEOUT_S = 10.0
MAX_AT_ONCE = 6
"""Queries under way, of all viewers."""
MAX_ANSWER_BYTES = 16 * 1024 * 1024
MAX_POINTS = 240
ASSUMED_SCRAPE_S = 15.0
"""A window of a rate is at least four of these, as in Grafana."""
LONGEST_S = 30 * 86_400.0
SERIES_OF_AN_HOUR_S = 3600


class _Found(msgspec.Struct):
    """One series of a vector or a matrix."""

    metric: dict[str, str] = {}
    value: tuple[float, str] | None = None
    values: list[tuple[float, str]] = []


class _Answer(msgspec.Struct):
    status: str
    data: msgspec.Raw = msgspec.Raw()
    error: str = ""


class PrometheusMetrics:
    """`url` as `prometheus_url`; `headers` go with every query."""

    def __init__(self, url: str, headers: Mapping[str, str], timeout_s: float = TIMEOUT_S) -> None:
        self._url = url.rstrip("/")
        self._headers = headers
        self._timeout_s = timeout_s
        self._places = asyncio.Semaphore(MAX_AT_ONCE)

    @property
    def reach(self) -> Reach:
        source = f"Prometheus at {urllib.parse.urlsplit(self._url).netloc}"
        return Reach(source, LONGEST_S, LONGEST_S, ASSUMED_SCRAPE_S, MAX_POINTS, is_own=False)

    def end_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def series(self, expr: str, grid: Grid) -> Sequence[Series]:
        times_ms = grid.times_ms
        if grid.count == 1:
            path, asked = "query", {"time": times_ms[0] / 1000}
        else:
            path, asked = "query_range", {"start": times_ms[0] / 1000, "end": times_ms[-1] / 1000, "step": grid.step_ms / 1000}
        data = await self._ask(path, {"query": expr, **asked, "timeout": f"{self._timeout_s:g}s"})
        return [Series(each.metric, _column(each, grid)) for each in _series_of(data)]

    async def label_values(self, metric: str, label: str) -> list[str]:
        end_s = self.end_ms() / 1000
        data = await self._ask(
            f"label/{label}/values", {"match[]": metric, "start": end_s - SERIES_OF_AN_HOUR_S, "end": end_s}, is_get=True
        )
        return sorted(msgspec.json.decode(data, type=list[str]))

    async def _ask(self, path: str, asked: Mapping[str, str | float], *, is_get: bool = False) -> msgspec.Raw:
        async with self._places:
            return await asyncio.to_thread(self._request, path, urllib.parse.urlencode(asked), is_get)

    def _request(self, path: str, query: str, is_get: bool) -> msgspec.Raw:
        url = f"{self._url}/api/v1/{path}"
        request = (
            urllib.request.Request(f"{url}?{query}", headers=dict(self._headers))
            if is_get
            else urllib.request.Request(url, data=query.encode(), headers=dict(self._headers))
        )
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as answer:
                content = answer.read(MAX_ANSWER_BYTES + 1)
        except urllib.error.HTTPError as error:
            with error:
                raise NoAnswer(self._refusal(error.code, error.read(MAX_ANSWER_BYTES))) from error
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise NoAnswer(f"{self.reach.source} does not answer ({reason}): check that it runs, and prometheus_url") from error
        if len(content) > MAX_ANSWER_BYTES:
            raise NoAnswer(f"the answer has more than {MAX_ANSWER_BYTES // 2**20} MiB: choose a shorter time, or one tenant")
        return self._decoded(content).data

    def _refusal(self, status: int, content: bytes) -> str:
        if status in (401, 403):
            return f"{self.reach.source} refused us (status {status}): check FAIRLANE_PROMETHEUS_HEADERS"
        try:
            told = msgspec.json.decode(content, type=_Answer).error
        except msgspec.DecodeError:
            told = ""
        return f"{self.reach.source} answered status {status}{': ' + told[:300] if told else ': is prometheus_url a Prometheus?'}"

    def _decoded(self, content: bytes) -> _Answer:
        try:
            return msgspec.json.decode(content, type=_Answer)
        except msgspec.DecodeError as error:
            raise NoAnswer(f"{self.reach.source} sent what no Prometheus sends: is prometheus_url right?") from error


def _series_of(data: msgspec.Raw) -> list[_Found]:
    """Of a vector, a matrix, or a number."""
    found: Any = msgspec.json.decode(data)
    if found["resultType"] == "scalar":
        return [_Found(value=(found["result"][0], found["result"][1]))]
    return msgspec.convert(found["result"], list[_Found])


def _column(found: _Found, grid: Grid) -> list[float | None]:
    column: list[float | None] = [None] * grid.count
    first_ms = grid.times_ms[0]
    for time_s, value in [*found.values, *([found.value] if found.value else [])]:
        place = round((time_s * 1000 - first_ms) / grid.step_ms)
        if 0 <= place < grid.count:
            number = float(value)
            column[place] = number if math.isfinite(number) else math.nan
    return column
