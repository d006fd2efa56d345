"""Whose cached pages go first: five tenants, of which each eviction policy takes another one's."""

from dataclasses import dataclass

import httpx

from tests.appliance import Appliance
from tests.e2e.metrics import metric
from tests.parity.served import prompt_of

PAGE_TOKENS = 16
PARTS = 96
"""Of the pool: pages are counted in them."""


@dataclass(frozen=True)
class Cacher:
    """A tenant with one prompt."""

    slug: str
    parts: int
    weight: float
    uses: int


CACHERS = (
    Cacher("evict-oldest", parts=4, weight=4.0, uses=2),
    Cacher("evict-rarest", parts=4, weight=4.0, uses=1),
    Cacher("evict-lightest", parts=2, weight=0.5, uses=2),
    Cacher("evict-faded", parts=16, weight=1.0, uses=1),
    Cacher("evict-largest", parts=24, weight=1.0, uses=4),
)
"""In the order of their last use. The rarest and the faded one were wanted as often, the rarest before; by uses and by pages for the
weight together the faded one is last."""
TAKER = Cacher("evict-taker", parts=25, weight=64.0, uses=1)
"""Asks for so much twice: more than the others left free."""
FIRST_VICTIMS = {
    "lru": "evict-oldest",
    "lfu": "evict-rarest",
    "size": "evict-largest",
    "weighted-lru": "evict-lightest",
    "decayed-lfu": "evict-faded",
}


def first_victim(appliance: Appliance) -> str:
    """The tenant that lost the first page, as `/debug/steps` tells. Nothing may have been asked of the server before."""
    with httpx.Client(base_url=appliance.base_url, headers=appliance.admin_headers, timeout=120) as admin:
        part_pages = round(metric(admin, "kv_pages")) // PARTS
        for number, cacher in enumerate(CACHERS):
            prompt = prompt_of(cacher.parts * part_pages * PAGE_TOKENS + 1 + number)
            _ask(admin, cacher, *[prompt] * cacher.uses)
        assert metric(admin, "evictions_total") == 0
        _ask(admin, TAKER, *[prompt_of(TAKER.parts * part_pages * PAGE_TOKENS + more) for more in (1, 2)])
        page = admin.get("/debug/steps").raise_for_status().json()
    told = [row[page["columns"].index("evicted")] for row in page["rows"]]
    first = next(text for text in reversed(told) if text)
    return first.split()[2]


def _ask(admin: httpx.Client, cacher: Cacher, *prompts: list[int]) -> None:
    """One after the other, as a new tenant. Once a prompt was computed, all of its full pages are found."""
    overrides = {"weight": cacher.weight, "kv_reserve": 0.0, "kv_cap": 1.0, "ttft_ms": None, "queue_ttl_ms": None}
    body = {"slug": cacher.slug, "tier": "standard", "overrides": overrides}
    admin.post("/api/v1/tenants", json=body).raise_for_status()
    key = admin.post(f"/api/v1/tenants/{cacher.slug}/keys", json={"name": "evictions"}).raise_for_status().json()["key"]
    asked: list[list[int]] = []
    for prompt in prompts:
        answer = admin.post(
            "/v1/completions",
            json={"prompt": prompt, "max_tokens": 1, "temperature": 0},
            headers={"Authorization": f"Bearer {key}"},
        ).raise_for_status()
        cached = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached == (len(prompt) // PAGE_TOKENS * PAGE_TOKENS if prompt in asked else 0)
        asked.append(prompt)
