"""Forms, fields, words, the log of starts: what needs neither a browser nor a server."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.domain.admission.replay import replay
from appliance.domain.slas.decisions import SEED_TIERS, Sla
from appliance.errors import Invalid
from appliance.telemetry.requests import Outcome, RequestReport
from appliance.ui.forms import Form, parse_form
from appliance.ui.pages.entry import safe_target
from appliance.ui.paging import Paging
from appliance.ui.sla_form import FIELDS, all_inputs, read_overrides, read_sla
from appliance.ui.start_log import StartLog
from appliance.ui.wording import budget, count, duration, percent, plain, short
from engine.wire import Progress, TenantPolicy


def form_of(sla: Sla, **changed: str) -> Form:
    """A form as a browser sends it: boxes that are not ticked are absent."""
    values = {name: tuple(text.split()) if name == "lanes" else (text,) for name, text in (all_inputs(sla) | changed).items()}
    if not values["shadow_mode"][0]:
        del values["shadow_mode"]
    return Form(values)


@pytest.mark.parametrize("sla", [*SEED_TIERS.values(), Sla(), Sla(ttft_ms=500.0, objective=0.9, output_caps=64, shadow_mode=True)])
def test_a_form_that_nobody_touched_changes_nothing(sla: Sla) -> None:
    assert read_sla(form_of(sla), sla) == {}


def test_a_form_changes_what_was_typed() -> None:
    sla = SEED_TIERS["standard"]
    typed = form_of(sla, rpm="1,200", **{"ttft_ms.fast": "250", "max_concurrency": "", "lanes": "fast slow"})
    ttft_ms = {**msgspec.to_builtins(sla)["ttft_ms"], "fast": 250.0}
    assert read_sla(typed, sla) == {"ttft_ms": ttft_ms, "rpm": 1200, "max_concurrency": None, "lanes": ("fast", "slow")}


def test_only_ticked_fields_are_a_tenants_own_and_an_empty_one_is_no_limit() -> None:
    tier = SEED_TIERS["standard"]
    typed = Form({**form_of(tier, rpm="5", max_concurrency="").values, "override": ("max_concurrency", "weight")})
    assert read_overrides(typed, tier) == {"max_concurrency": None, "weight": tier.weight}


@pytest.mark.parametrize("field", [field for field in FIELDS if field.kind in ("whole", "number")], ids=lambda field: field.name)
def test_what_is_no_number_is_refused_by_the_fields_name(field) -> None:
    with pytest.raises(Invalid, match=field.name):
        read_sla(form_of(Sla(), **{field.name: "many"}), Sla())


@given(st.dictionaries(st.text(min_size=1, max_size=8), st.text(max_size=20), max_size=6))
def test_a_form_says_what_was_typed_into_it(fields: dict[str, str]) -> None:
    pairs = "&".join(f"{_quoted(name)}={_quoted(value)}" for name, value in fields.items())
    form = parse_form(pairs.encode())
    assert {name: form.secret(name) for name in fields} == fields


def _quoted(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode())


@given(st.text(max_size=40))
def test_a_login_leads_to_a_page_of_ours_whatever_the_link_says(target: str) -> None:
    for tried in (target, f"/ui/{target}", f"//{target}", f"https://{target}", f"/\\{target}"):
        led = safe_target(tried)
        assert led.startswith("/ui/") and "//" not in led and "\\" not in led


def test_numbers_are_written_one_way() -> None:
    assert [duration(value) for value in (None, 0, 0.0042, 0.34, 0.9996, 2.305, 61, 3700, 200_000)] == [
        "–", "0 ms", "4.2 ms", "340 ms", "1.00 s", "2.31 s", "61.0 s", "1 h 1 min", "2 d 7 h",
    ]  # fmt: skip
    assert [short(value) for value in (950, 5_800, 1234567, 456e6, 999_900)] == ["950", "5.80k", "1.23M", "456M", "1.00M"]
    assert [count(1234567), percent(0.99996), percent(1), percent(None)] == ["1,234,567", "99.9 %", "100.0 %", "–"]
    assert plain({"fast": 500.0, "slow": None}) == "fast 500, slow –"


def test_a_budget_is_left_or_spent_some_times() -> None:
    assert [budget(left) for left in (1, 0.615, 0, -0.5, -81.4)] == ["100 %", "61 %", "0 %", "1.5× spent", "82× spent"]


def test_a_page_that_is_not_there_is_the_nearest_one() -> None:
    assert [(Paging.of(101, page).page, Paging.of(101, page).first, Paging.of(101, page).end) for page in (-3, 2, 9)] == [
        (1, 0, 50), (2, 50, 100), (3, 100, 101),
    ]  # fmt: skip
    assert (Paging.of(0, 1).pages, Paging.of(0, 1).end) == (1, 0)


def test_a_start_is_remembered_by_phase_and_program_and_goes_to_the_earlier_ones_at_the_next() -> None:
    now = [0.0]
    log = StartLog(lambda: now[0], lambda: 1_800_000_000.0 + now[0])
    for at_s, step in (
        (0, Progress("prepare", 0, 1)),
        (1, Progress("prepare", 1, 1)),
        (1, Progress("compile", 0, 2, "the first start takes longest")),
        (3, Progress("compile", 1, 2, "d4")),
        (5, Progress("compile", 2, 2, "p64")),
        (6, Progress("warmup", 1, 2, "d4")),
    ):
        now[0] = at_s
        log.note("0", step)
    start = log.starts["0"]
    assert {name: (phase.begin_s, phase.end_s) for name, phase in start.phases.items()} == {
        "prepare": (0, 1), "compile": (1, 5), "warmup": (5, None),
    }  # fmt: skip
    assert start.programs == {"d4": {"compile": 3, "warmup": 6}, "p64": {"compile": 5}}
    log.note("0", Progress("prepare", 0, 1))
    assert log.starts["0"].programs == {} and list(log.earlier) == [start]
    assert (log.starts["0"].began_at - start.began_at).total_seconds() == 6


SECOND_NS = 1_000_000_000


def ended(at_s: float, *, tokens: int = 10, seconds: float = 0.5, waited_s: float = 0.0) -> RequestReport:
    received_ns = round(at_s * SECOND_NS)
    return RequestReport(
        request_id=f"req_{at_s}",
        route="/v1/completions",
        tenant_id="t",
        lane="fast",
        outcome=Outcome.COMPLETED,
        status=200,
        prompt_tokens=tokens,
        received_ns=received_ns,
        scheduled_ns=received_ns + round(waited_s * SECOND_NS),
        ended_ns=received_ns + round(seconds * SECOND_NS),
    )


FREE = TenantPolicy(tenant_id="t", max_concurrency=None)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ({}, {}),
        ({"rpm": 4}, {"rate_requests": 6}),
        ({"tpm": 40}, {"rate_tokens": 6}),
        ({"max_concurrency": 2}, {"concurrency": 8}),
        ({"max_context_tokens": 9}, {"too_long": 10}),
        ({"tokens_per_day": 50}, {"budget": 5}),
        ({"queue_ttl_s": 0.2}, {"queue_timeout": 10}),
    ],
)
def test_a_replay_refuses_what_the_limits_would_have(limit: dict[str, object], expected: dict[str, int]) -> None:
    """Ten requests within a second, ten tokens each, that took ten seconds and waited 0.3 s for their first step."""
    reports = [ended(1000 + 0.1 * index, seconds=10, waited_s=0.3) for index in range(10)]
    policy = msgspec.structs.replace(FREE, **limit)
    found = replay(policy, reversed(reports), wall_s=1_800_000_000.0, now_ns=1020 * SECOND_NS)
    assert (found.requests, dict(found.refused)) == (10, expected)


def test_a_replay_lets_in_again_when_requests_end_and_minutes_pass() -> None:
    reports = [ended(1000), ended(1001), ended(1100), ended(1101)]
    policy = msgspec.structs.replace(FREE, rpm=1, max_concurrency=1)
    assert dict(replay(policy, reports, 1_800_000_000.0, 1200 * SECOND_NS).refused) == {"rate_requests": 2}


@pytest.mark.parametrize("typed", ["inf", "-inf", "nan", "1e999", "x"])
def test_a_number_is_finite(typed: str) -> None:
    with pytest.raises(Invalid, match="write a number"):
        Form({"tpot_ms.fast": (typed,)}).number("tpot_ms.fast")
