"""KV memory over HTTP, in a pool that is too small: what a reserve is worth, and text that does not change when pages leave and return."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.appliance import SMALL_BUCKETS, Appliance, start_appliance
from tests.e2e.metrics import metric, until
from tests.parity.evictions import FIRST_VICTIMS, first_victim
from tests.parity.served import ask_alone, ask_together, greedy, prompt_of, texts

NUM_PAGES = 96
"""1,536 tokens, and the longest context needs 64 pages: 32 can be reserved."""
FLAGS = (
    *SMALL_BUCKETS,
    "--dtype",
    "float32",
    "--max-num-seqs",
    "16",
    "--max-model-len",
    "1024",
    "--num-gpu-blocks-override",
    str(NUM_PAGES),
)
RESERVE_PAGES = 28
PROMPT = prompt_of(390)
"""24 full pages and one more token at least: within the reserve."""
LONG_ANSWERS = [{**greedy(prompt_of(length)), "max_tokens": 200} for length in (90, 91, 92, 93, 94, 95, 96, 97)]
"""Eight times 18 pages: half of them fit at their full length, all of them when they start."""


@pytest.fixture(scope="module")
def swapping(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    flags = (*FLAGS, "--eviction-policy", "decayed-lfu")
    with start_appliance(tmp_path_factory.mktemp("swapping"), *flags, model=str(tiny_model)) as running:
        yield running


@pytest.fixture(scope="module")
def unprotected(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    """Without quotas and without swap space."""
    flags = (*FLAGS, "--no-enable-kv-quota", "--swap-space", "0", "--eviction-policy", "lru")
    with start_appliance(tmp_path_factory.mktemp("unprotected"), *flags, model=str(tiny_model)) as running:
        yield running


def tenant(appliance: Appliance, slug: str, **overrides: Any) -> dict[str, str]:
    """Headers of a new tenant's key."""
    with httpx.Client(base_url=appliance.base_url, headers=appliance.admin_headers, timeout=30) as admin:
        created = admin.post("/api/v1/tenants", json={"slug": slug, "name": slug, "tier": "standard", "overrides": overrides})
        assert created.status_code == 201, created.text
        key = admin.post(f"/api/v1/tenants/{slug}/keys", json={"name": "memory", "scopes": ["inference"]})
        return {"Authorization": f"Bearer {key.json()['key']}"}


def test_the_chosen_policy_says_whose_cached_pages_go_first(swapping: Appliance, unprotected: Appliance) -> None:
    # First in this file: the pools are empty. Of the other policies: test_switches_served.py.
    assert first_victim(swapping) == FIRST_VICTIMS["decayed-lfu"]
    assert first_victim(unprotected) == FIRST_VICTIMS["lru"]


def cached_after_a_flood(appliance: Appliance) -> int:
    """Tokens of the quiet tenant's prompt that are still cached after another tenant filled the pool over and over."""
    quiet = tenant(appliance, "quiet", kv_reserve=RESERVE_PAGES / NUM_PAGES + 1e-6)
    noisy = tenant(appliance, "noisy")
    body = {"prompt": PROMPT, "max_tokens": 1, "temperature": 0}
    with httpx.Client(base_url=appliance.base_url, timeout=120) as client:
        client.post("/v1/completions", json=body, headers=quiet).raise_for_status()
        for length in range(400, 408):
            client.post("/v1/completions", json={**body, "prompt": prompt_of(length)}, headers=noisy).raise_for_status()
        answer = client.post("/v1/completions", json=body, headers=quiet).raise_for_status().json()
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_a_reserve_keeps_a_tenants_cached_prompt_through_anothers_flood_and_nothing_does_without_quotas(
    swapping: Appliance, unprotected: Appliance
) -> None:
    assert cached_after_a_flood(swapping) == (len(PROMPT) - 1) // 16 * 16
    assert cached_after_a_flood(unprotected) == 0


def counted(appliance: Appliance, name: str, **labels: str) -> float:
    with httpx.Client(base_url=appliance.base_url, headers=appliance.headers, timeout=30) as client:
        until(lambda: metric(client, "running_requests") == 0)
        return metric(client, name, **labels)


def test_text_is_the_same_with_swapping_without_it_and_alone(swapping: Appliance, unprotected: Appliance) -> None:
    # Together first: once the engine knows how long these answers are, it starts only those it has room for.
    swapped, recomputed = ask_together(swapping, LONG_ANSWERS), ask_together(unprotected, LONG_ANSWERS)
    alone = ask_alone(swapping, LONG_ANSWERS)
    assert texts(swapped) == texts(recomputed) == texts(alone)
    assert len(set(texts(alone))) == len(LONG_ANSWERS)
    out, back = (counted(swapping, "swapped_pages_total", direction=direction) for direction in ("out", "in"))
    assert out >= back > 0
    assert counted(swapping, "preemptions_total", cause="swap") > 0
    assert counted(unprotected, "preemptions_total", cause="memory") > 0
    assert counted(unprotected, "swapped_pages_total") == counted(unprotected, "preemptions_total", cause="swap") == 0
    assert counted(swapping, "kv_pages") == NUM_PAGES
