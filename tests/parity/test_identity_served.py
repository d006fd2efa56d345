"""The served process gives the same text whatever the batch, the chunks, the cache, preemption and the overlap.

A tiny random model in float32. The reference is each prompt alone on the baseline (chunks of up to 64 tokens, prefix
cache, overlapped loop); the variants change several things at once, for each start of a server costs seconds.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.appliance import SMALL_BUCKETS, Appliance, start_appliance
from tests.e2e.metrics import metric
from tests.parity.conftest import SERVED_FLAGS
from tests.parity.served import LENGTHS, OUTPUT_TOKENS, PROMPTS, Answer, ask_alone, ask_together, greedy, seeded, texts

GREEDY = [greedy(prompt) for prompt in PROMPTS]
SEEDED = [seeded(prompt) for prompt in PROMPTS]
PAGE_TOKENS = 16

WHOLE_UNCACHED_PLAIN = (
    *("--decode-buckets", "16", "--prefill-buckets", "64,640", "--mixed-decode-buckets", "16", "--mixed-prefill-buckets", "640"),
    *("--max-num-batched-tokens", "640", "--max-prefill-rows", "16", "--no-enable-prefix-caching", "--no-async-scheduling"),
)
"""Every prompt in one chunk; nothing cached; each step finished before the next is planned."""
SMALL_CHUNKS_PREEMPTED = (*SMALL_BUCKETS, "--max-num-batched-tokens", "16", "--preempt-every-steps", "7")
"""Chunks of 16, and every 7th step takes the pages of the youngest sequence."""


@dataclass(frozen=True, slots=True)
class Reference:
    """What the baseline answers to each prompt alone."""

    greedy: list[Answer]
    seeded: list[Answer]


@pytest.fixture(scope="module")
def reference(baseline: Appliance) -> Reference:
    return Reference(ask_alone(baseline, GREEDY), ask_alone(baseline, SEEDED))


@pytest.fixture(scope="module")
def uncached(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    with start_appliance(tmp_path_factory.mktemp("uncached"), *SERVED_FLAGS, *WHOLE_UNCACHED_PLAIN, model=str(tiny_model)) as running:
        yield running


@pytest.fixture(scope="module")
def preempted(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    with start_appliance(tmp_path_factory.mktemp("preempted"), *SERVED_FLAGS, *SMALL_CHUNKS_PREEMPTED, model=str(tiny_model)) as running:
        yield running


def read_metric(appliance: Appliance, name: str, **labels: str) -> float:
    with httpx.Client(base_url=appliance.base_url, headers=appliance.headers, timeout=30) as client:
        return metric(client, name, **labels)


def test_the_reference_says_something(reference: Reference) -> None:
    """Otherwise equal texts would prove little."""
    for answers in (reference.greedy, reference.seeded):
        assert len(set(texts(answers))) == len(PROMPTS)
        assert all(answer.completion_tokens == OUTPUT_TOKENS for answer in answers)
    assert not set(texts(reference.greedy)) & set(texts(reference.seeded))


def test_text_is_the_same_alone_and_in_a_batch_of_16(baseline: Appliance, reference: Reference) -> None:
    assert texts(ask_together(baseline, GREEDY)) == texts(reference.greedy)
    assert texts(ask_together(baseline, SEEDED)) == texts(reference.seeded)
    mixed = [pair[number % 2] for number, pair in enumerate(zip(GREEDY, SEEDED, strict=True))]
    expected = [pair[number % 2] for number, pair in enumerate(zip(texts(reference.greedy), texts(reference.seeded), strict=True))]
    assert texts(ask_together(baseline, mixed)) == expected


def test_text_is_the_same_when_its_prompt_comes_from_the_prefix_cache(baseline: Appliance, reference: Reference) -> None:
    """A wholly cached prompt recomputes its last page: all full pages before the last token are hits."""
    repeated = ask_alone(baseline, GREEDY[-4:])
    assert texts(repeated) == texts(reference.greedy[-4:])
    assert [answer.cached_tokens for answer in repeated] == [(length - 1) // PAGE_TOKENS * PAGE_TOKENS for length in LENGTHS[-4:]]


def test_text_is_the_same_with_whole_prefills_no_prefix_cache_and_the_plain_loop(uncached: Appliance, reference: Reference) -> None:
    first, again = ask_together(uncached, GREEDY), ask_together(uncached, GREEDY)
    assert texts(first) == texts(again) == texts(reference.greedy)
    assert texts(ask_together(uncached, SEEDED)) == texts(reference.seeded)
    assert texts(ask_alone(uncached, GREEDY[-2:])) == texts(reference.greedy[-2:])
    assert max(answer.cached_tokens for answer in (*first, *again)) == 0
    assert read_metric(uncached, "prefix_cache_hit_tokens_total") == 0


def test_text_is_the_same_with_chunks_of_16_and_forced_preemption(preempted: Appliance, reference: Reference) -> None:
    before = read_metric(preempted, "preemptions_total", cause="forced")
    assert texts(ask_together(preempted, GREEDY)) == texts(reference.greedy)
    assert texts(ask_together(preempted, SEEDED)) == texts(reference.seeded)
    assert texts(ask_alone(preempted, GREEDY[-2:])) == texts(reference.greedy[-2:])
    assert read_metric(preempted, "preemptions_total", cause="forced") - before > 20


def test_a_long_wait_for_a_token_by_preemption_is_explained(preempted: Appliance) -> None:
    with httpx.Client(base_url=preempted.base_url, headers=preempted.admin_headers, timeout=30) as client:
        strict = {"version": client.get("/api/v1/tenants/default").json()["version"], "overrides": {"tpot_ms": 1}}
        assert client.patch("/api/v1/tenants/default", json=strict).status_code == 200  # a gap is slow however fast the machine is
        answers = ask_together(preempted, [greedy(prompt[::-1]) for prompt in PROMPTS])
        found = [client.get(f"/v1/requests/{answer.request_id}/explain").json() for answer in answers]
    lost = [(each, gap) for each in found for gap in each["gaps"] if gap["preempted"]]
    assert lost and {loss["cause"] for _, gap in lost for loss in gap["preempted"]} == {"forced"}
    told = [each["verdict"] for each, gap in lost if gap["seconds"] == max(other["seconds"] for other in each["gaps"])]
    assert told and all("because it was preempted by the setting" in verdict for verdict in told)
