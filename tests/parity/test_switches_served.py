"""Each part that can be switched off is on or off in the served process: what requests over HTTP see of it."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.appliance import SMALL_BUCKETS, Appliance, start_appliance
from tests.e2e.metrics import metric, until
from tests.e2e.test_leavers import begin
from tests.parity.evictions import FIRST_VICTIMS, first_victim
from tests.parity.served import prompt_of

FLAGS = (*SMALL_BUCKETS, "--dtype", "float32", "--max-num-seqs", "2", "--max-model-len", "4096")
NARROW = ("--num-gpu-blocks-override", "300")
"""The longest context needs 256 pages,"""
WIDE = ("--num-gpu-blocks-override", "600")
"""so that two of them fit."""
PATIENT = {"ttft_ms": None, "queue_ttl_ms": None}


@dataclass(frozen=True)
class Case:
    """What is switched, and what is seen of it."""

    flags: tuple[str, ...]
    order: str
    """In which the requests A1, A2, A3 of 100 tokens and then B1, B2 of 600, whose tenant has the higher priority, are begun."""
    most_chunk_tokens: int = 64
    serves_what_is_late: bool = False
    nearer_deadline_first: bool = False
    holds_its_longest_context: bool = False
    preempts_batch: bool | None = None
    evicts_by: str | None = None


CASES = {
    "all on": Case(NARROW, "B1 A1 A2 A3 B2", nearer_deadline_first=True, preempts_batch=True, evicts_by="weighted-lru"),
    "turns of requests": Case(
        (*NARROW, "--scheduling-policy", "wrr", "--no-enable-deadline-order", "--no-enable-batch-preemption", "--eviction-policy", "lfu"),
        "B1 A1 B2 A2 A3",
        preempts_batch=False,
        evicts_by="lfu",
    ),
    "priorities": Case(
        (*WIDE, "--scheduling-policy", "priority", "--fixed-chunk-tokens", "32", "--eviction-policy", "size"),
        "B1 B2 A1 A2 A3",
        most_chunk_tokens=32,
        evicts_by="size",
    ),
    "arrival": Case(
        (*WIDE, "--scheduling-policy", "fcfs", "--kv-allocation", "contiguous", "--no-admission"),
        "A1 A2 A3 B1 B2",
        holds_its_longest_context=True,
        serves_what_is_late=True,
    ),
}


class Asker:
    """Requests of several tenants at one server, each in a thread."""

    def __init__(self, appliance: Appliance, admin: httpx.Client, pool: ThreadPoolExecutor) -> None:
        self.admin = admin
        self._appliance = appliance
        self._pool = pool
        self._headers: dict[str, dict[str, str]] = {}

    def add_tenant(self, slug: str, **overrides: Any) -> None:
        body = {"slug": slug, "tier": "standard", "overrides": PATIENT | overrides}
        self.admin.post("/api/v1/tenants", json=body).raise_for_status()
        key = self.admin.post(f"/api/v1/tenants/{slug}/keys", json={"name": "switches"}).raise_for_status().json()["key"]
        self._headers[slug] = {"Authorization": f"Bearer {key}"}

    def set_target(self, slug: str, ttft_ms: int) -> None:
        version = self.admin.get(f"/api/v1/tenants/{slug}").json()["version"]
        body = {"version": version, "overrides": PATIENT | {"ttft_ms": ttft_ms}}
        self.admin.patch(f"/api/v1/tenants/{slug}", json=body).raise_for_status()

    def ask(self, slug: str, prompt_tokens: int, max_tokens: int = 1, **fields: Any) -> Future[httpx.Response]:
        body = {"prompt": prompt_of(prompt_tokens), "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0, **fields}
        return self._pool.submit(
            httpx.post, f"{self._appliance.base_url}/v1/completions", json=body, headers=self._headers[slug], timeout=120
        )

    @property
    def load(self) -> dict[str, Any]:
        return self.admin.get("/load").json()

    def count(self, name: str, **labels: str) -> float:
        return metric(self.admin, name, **labels)

    @contextmanager
    def row_taken(self, slug: str, row: int) -> Iterator[None]:
        """One of the rows, until the block ends and its client leaves."""
        with closing(begin(self._appliance, self._headers[slug], prompt=prompt_of(20), max_tokens=3_900)):
            until(lambda: self.load["running"] == row)
            yield

    def wait_for_queue(self, length: int) -> None:
        until(lambda: self.load["queued"] == length)

    def steps(self, answer: Future[httpx.Response]) -> list[tuple[int, int]]:
        """Number and tokens of each step that computed a chunk of the request's prompt."""
        request_id = answer.result().raise_for_status().headers["x-request-id"]
        found = self.admin.get(f"/v1/requests/{request_id}/explain").raise_for_status().json()
        return [(chunk["step"], chunk["tokens"]) for chunk in found["chunks"]]


@pytest.mark.parametrize("name", CASES)
def test_a_part_that_is_switched_off_is_off_over_http(tiny_model: Path, tmp_path: Path, name: str) -> None:
    case = CASES[name]
    with (
        start_appliance(tmp_path, *FLAGS, *case.flags, model=str(tiny_model)) as appliance,
        httpx.Client(base_url=appliance.base_url, headers=appliance.admin_headers, timeout=120) as admin,
        ThreadPoolExecutor(16) as pool,
    ):
        if case.evicts_by is not None:
            assert first_victim(appliance) == FIRST_VICTIMS[case.evicts_by]
        asker = Asker(appliance, admin, pool)
        for slug, priority in (("hold", 0), ("hold-too", 0), ("a", 0), ("b", 5), ("c", 0)):
            asker.add_tenant(slug, priority=priority)
        asker.add_tenant("d", ttft_ms=1, queue_ttl_ms=60_000)
        with asker.row_taken("hold", 1):
            with asker.row_taken("hold-too", 2):
                used_ratio = asker.load["kv_used_ratio"]
                asked = {}
                for number, (each, prompt_tokens) in enumerate((("A1", 100), ("A2", 101), ("A3", 102), ("B1", 600), ("B2", 601)), 1):
                    asked[each] = asker.ask(each[0].lower(), prompt_tokens)
                    asker.wait_for_queue(number)
                asker.set_target("c", 60_000)
                late = asker.ask("c", 40)
                asker.wait_for_queue(6)
                asker.set_target("c", 20_000)
                soon = asker.ask("c", 41)
                asker.wait_for_queue(7)
                promised = asker.ask("d", 30)
                asker.wait_for_queue(8)
                late_already = asker.ask("d", 31)
                until(lambda: asker.load["queued"] == 9 or late_already.done())
            begun = {each: asker.steps(answer) for each, answer in asked.items()}
            first_of_late, first_of_soon = asker.steps(late)[0], asker.steps(soon)[0]
        assert " ".join(sorted(begun, key=lambda each: begun[each][0][0])) == case.order
        longest_chunk = max(tokens for chunks in begun.values() for _, tokens in chunks)
        assert longest_chunk == case.most_chunk_tokens
        assert promised.result().status_code == 200
        assert (late_already.result().status_code == 200) == case.serves_what_is_late
        assert (first_of_soon < first_of_late) == case.nearer_deadline_first
        assert (used_ratio > 0.8) == case.holds_its_longest_context
        if case.preempts_batch is not None:
            assert preempts_batch(asker) == case.preempts_batch


def preempts_batch(asker: Asker) -> bool:
    """A batch request has more than half of the pages when an interactive one of its own tenant comes that needs as many."""
    until(lambda: asker.load["running"] == 0)
    before = asker.count("preemptions_total")
    batch = asker.ask("a", 2_800, 1_200, lane="batch")
    until(lambda: asker.load["running"] == 1)
    asker.ask("a", 2_500).result().raise_for_status()
    batch.result().raise_for_status()
    return asker.count("preemptions_total") > before
