"""`n > 1` over HTTP: the prompt is computed once, its pages are shared and the last one copied, and each text is its own."""

from typing import Any

import httpx

from tests.appliance import Appliance
from tests.e2e.metrics import metric, until
from tests.parity.served import prompt_of

NUM_OUTPUTS = 4
PROMPT = prompt_of(239)
"""14 full pages and 15 tokens in the last one; no other test has it."""


def test_four_outputs_compute_the_prompt_once_and_say_what_each_says_alone(baseline: Appliance) -> None:
    body: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 24, "ignore_eos": True, "temperature": 0.9, "top_p": 0.9}
    with httpx.Client(base_url=baseline.base_url, headers=baseline.headers, timeout=120) as client:

        def counted(name: str, **labels: str) -> float:
            until(lambda: metric(client, "running_requests") == 0)
            return metric(client, name, **labels)

        computed, copied = counted("step_tokens_total", kind="prefill"), counted("copied_pages_total")
        answer = client.post("/v1/completions", json={**body, "n": NUM_OUTPUTS, "seed": 21}).json()
        # The others put only the prompt's last token through the model, for its logits.
        assert counted("step_tokens_total", kind="prefill") - computed == len(PROMPT) + NUM_OUTPUTS - 1
        assert counted("copied_pages_total") - copied == NUM_OUTPUTS - 1
        assert answer["usage"]["prompt_tokens"] == len(PROMPT)
        texts = [choice["text"] for choice in answer["choices"]]
        alone = [client.post("/v1/completions", json={**body, "seed": 21 + n}).json()["choices"][0]["text"] for n in range(NUM_OUTPUTS)]
    assert texts == alone and len(set(texts)) == NUM_OUTPUTS
