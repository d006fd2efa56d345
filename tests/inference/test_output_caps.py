from pathlib import Path

import pytest

from appliance.domain.inference.output_caps import BUILT_IN_CAPS_TOKENS, OutputLimit, TaskCap, cap_of, output_limit
from appliance.errors import Invalid
from engine.wire import TenantPolicy
from tests.inference.fake_engine import counting_answer
from tests.inference.harness import start_house
from tests.text.smollm2 import write_export


def limit(asked: int | None, prompt_tokens: int, *, task: str = "reason", policy: TenantPolicy | None = None) -> OutputLimit:
    cap = cap_of(policy or TenantPolicy(tenant_id="t"), task, "chat")  # pyright: ignore[reportArgumentType]
    return output_limit("max_tokens", asked, cap, source="prompt", prompt_tokens=prompt_tokens, context_tokens=8_192)


def test_a_long_prompt_lowers_every_cap_that_is_above_256() -> None:
    assert [limit(None, tokens).tokens for tokens in (1, 4_000, 4_001)] == [768, 768, 256]
    assert [limit(None, tokens, task="extract").tokens for tokens in (4_000, 4_001)] == [96, 96]
    assert limit(500, 4_001) == OutputLimit(256, "output_cap")


def test_the_context_bounds_what_the_cap_would_allow() -> None:
    assert limit(None, 8_100) == OutputLimit(92, "context")
    assert limit(None, 8_092, task="extract") == OutputLimit(96, "output_cap")
    with pytest.raises(Invalid, match="at most 92 fit"):
        limit(93, 8_100)


@pytest.mark.parametrize(
    ("named", "mode", "shadow_mode", "expected"),
    [
        (None, "fill", False, "fill"),
        ("chat", "fill", False, "clamp"),
        ("chat", "refuse", False, "refuse"),
        (None, "clamp", False, "clamp"),
        ("chat", "refuse", True, "fill"),
    ],
)
def test_an_explicit_number_is_limited_where_the_request_names_its_task_or_the_tier_says_so(named, mode, shadow_mode, expected) -> None:
    policy = TenantPolicy(tenant_id="t", output_cap_mode=mode, shadow_mode=shadow_mode)
    assert cap_of(policy, named, "chat") == TaskCap("chat", 384, expected)


def test_over_http_each_task_has_its_cap_and_above_4000_prompt_tokens_256_at_most(tmp_path: Path) -> None:
    with start_house(tmp_path, write_export(tmp_path, max_model_len=8_192), counting_answer) as house:

        def length(task: str, prompt_tokens: int) -> tuple[int, str]:
            body = {"prompt": [7] * prompt_tokens, "task": task, "task_stops": False}
            answer = house.post("/v1/completions", body).json()
            return answer["usage"]["completion_tokens"], answer["choices"][0]["finish_detail"]

        for task, cap in BUILT_IN_CAPS_TOKENS.items():
            assert length(task, 4_000) == (cap, "output_cap")
            assert length(task, 4_001) == (min(cap, 256), "output_cap")
