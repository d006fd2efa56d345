"""SmolLM2 served with KV in int8: the same answers from half the memory."""

import json
from pathlib import Path

import httpx

from tests.appliance import SMALL_BUCKETS, start_appliance

POOL_BYTES = 64 * 2**20
BYTES_PER_TOKEN = 2 * 30 * 3 * (64 + 4)
"""K and V, layers, KV heads, values and a scale."""
FLAGS = ("--kv-cache-dtype", "int8", "--max-num-seqs", "16", "--max-model-len", "2048", "--kv-cache-memory-bytes", str(POOL_BYTES))


def test_int8_kv_answers_paris_and_holds_nearly_twice_the_tokens_of_bfloat16(tmp_path: Path) -> None:
    question = {"role": "user", "content": "What is the capital of France?"}
    with start_appliance(tmp_path, *SMALL_BUCKETS, *FLAGS, timeout_s=400) as appliance:
        body = {"model": "smollm2-135m-instruct", "messages": [question], "temperature": 0, "max_tokens": 40}
        with httpx.Client(base_url=appliance.base_url, headers=appliance.headers, timeout=120) as client:
            answers = [client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"] for _ in range(2)]
        assert "Paris" in answers[0] and answers[1] == answers[0]  # the second reads cached pages
        card = json.loads((tmp_path / "model" / "model.json").read_text())
    assert card["kv_bytes_per_token"] == BYTES_PER_TOKEN
    assert card["num_pages"] == POOL_BYTES // (16 * BYTES_PER_TOKEN) > 1.88 * (POOL_BYTES // (16 * 2 * 30 * 3 * 64 * 2)) - 1
