"""Clients that keep asking while something happens to the server, and count what they were answered."""

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx

from tests.inference.test_serve import ADMIN, HEADERS, Served

ADMIN_HEADERS = {"Authorization": f"Bearer {ADMIN}"}


@dataclass
class Tally:
    """Answers by status, and the tokens of those that were 200."""

    statuses: Counter[int] = field(default_factory=Counter)
    tokens: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, answer: httpx.Response) -> None:
        with self.lock:
            self.statuses[answer.status_code] += 1
            if answer.status_code == 200:
                self.tokens += answer.json()["usage"]["total_tokens"]

    @property
    def number(self) -> int:
        return self.statuses.total()


@contextlib.contextmanager
def asking(url: str, number: int = 2, headers: dict[str, str] | None = None) -> Iterator[Tally]:
    """So many clients in a closed loop inside the block."""
    tally, over = Tally(), threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=url, headers=headers or HEADERS, timeout=30) as client:
            while not over.is_set():
                tally.add(client.post("/v1/completions", json={"prompt": "x", "max_tokens": 3}))
                over.wait(0.02)

    threads = [threading.Thread(target=ask) for _ in range(number)]
    for thread in threads:
        thread.start()
    try:
        yield tally
    finally:
        over.set()
        for thread in threads:
            thread.join(40)


def booked(served: Served, tenant: str = "default") -> tuple[int, int]:
    """Requests and tokens of a tenant in the books; (-1, -1) while they can not be read."""
    answer = httpx.get(f"{served.url}/api/v1/usage", params={"tenant": tenant}, headers=ADMIN_HEADERS, timeout=30)
    if answer.status_code != 200:
        return -1, -1
    totals = answer.json()["totals"]
    return totals["requests"], totals["prompt_tokens"] + totals["generated_tokens"]


def new_tenant(served: Served, slug: str) -> httpx.Response:
    """Ask for a tenant."""
    return httpx.post(f"{served.url}/api/v1/tenants", json={"slug": slug}, headers=ADMIN_HEADERS, timeout=30)
