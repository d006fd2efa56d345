import msgspec
import pytest

from appliance.domain.slas.decisions import SEED_TIERS, SLA_FIELDS, UNLIMITED, Sla, check_sla, policy_of, sla_with, stored_sla
from appliance.domain.slas.models import SlaTier
from appliance.errors import Invalid
from engine.wire import TenantPolicy

EVERYTHING = Sla(
    weight=2.5, priority=3, lanes=("fast", "slow"), default_lane="slow", ttft_ms={"fast": 300}, tpot_ms=40, objective={"fast": 0.95},
    committed_tpm=1_000, tpm=2_000, rpm=60, max_concurrency=8, max_queued=16, queue_ttl_ms=1_500, max_context=4_096,
    output_caps={"chat": 512}, output_cap_mode="refuse", kv_reserve=0.1, kv_cap=0.5, tokens_per_day=10_000, tokens_per_month=100_000,
    shadow_mode=True,
)  # fmt: skip


def test_every_field_reaches_the_policy_in_its_unit():
    assert policy_of("acme", "partners", "gold", EVERYTHING, 7) == TenantPolicy(
        tenant_id="acme", tier="gold", trust_group="partners", weight=2.5, priority=3, lanes=("fast", "slow"), default_lane="slow",
        ttft_s={"fast": 0.3}, tpot_s={"fast": 0.04, "slow": 0.04},
        objectives={"fast": 0.95, "slow": 0.99}, committed_tpm=1_000, tpm=2_000, rpm=60,
        max_concurrency=8, max_queued=16, queue_ttl_s=1.5, max_context_tokens=4_096, output_caps_tokens={"chat": 512},
        output_cap_mode="refuse", kv_reserve_ratio=0.1, kv_cap_ratio=0.5, tokens_per_day=10_000, tokens_per_month=100_000,
        shadow_mode=True, version=7,
    )  # fmt: skip


def test_no_field_of_an_sla_is_left_out_of_the_policy():
    plain, changed = policy_of("a", "", "t", Sla(), 0), policy_of("a", "", "t", EVERYTHING, 0)
    same = [name for name in SLA_FIELDS if msgspec.to_builtins(Sla())[name] == msgspec.to_builtins(EVERYTHING)[name]]
    assert same == []
    differing = [field.name for field in msgspec.structs.fields(TenantPolicy) if getattr(plain, field.name) != getattr(changed, field.name)]
    assert len(differing) == len(SLA_FIELDS)


def test_every_field_of_an_sla_is_a_column_of_the_tier():
    assert set(SLA_FIELDS) <= {column.name for column in SlaTier.__table__.columns}


def test_an_override_replaces_its_field_and_null_lifts_a_limit():
    standard = SEED_TIERS["standard"]
    changed = sla_with(standard, {"rpm": 5, "ttft_ms": {"fast": 100}, "max_concurrency": None})
    assert (changed.rpm, changed.ttft_ms, changed.max_concurrency) == (5, {"fast": 100.0}, None)
    assert changed.weight == standard.weight


def test_an_objective_by_lane_is_0_99_where_it_is_left_out():
    by_lane = policy_of("a", "", "t", Sla(objective={"fast": 0.999}), 0)
    assert [by_lane.objective_of(lane) for lane in ("fast", "slow", "batch")] == [0.999, 0.99, 0.99]
    for_all = policy_of("a", "", "t", Sla(objective=0.9), 0)
    assert [for_all.objective_of(lane) for lane in ("fast", "slow", "batch")] == [0.9, 0.9, 0.9]


def test_a_number_is_the_output_cap_of_every_task():
    caps = policy_of("a", "", "t", Sla(output_caps=100), 0).output_caps_tokens
    assert caps == {"extract": 100, "chat": 100, "reason": 100, "other": 100}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"rmp": 5}, "overrides.rmp is no field of an SLA; the fields are weight"),
        ({"rpm": 0}, "overrides.rpm: expected `int` >= 1"),
        ({"rpm": "5"}, "got `str`"),
        ({"rpm": True}, "got `bool`"),
        ({"rpm": 2**60}, "overrides.rpm"),
        ({"weight": float("nan")}, "overrides.weight"),
        ({"weight": 0}, "overrides.weight"),
        ({"objective": 1}, "overrides.objective"),
        ({"objective": {"fast": 0}}, "overrides.objective"),
        ({"objective": {"express": 0.9}}, "express"),
        ({"lanes": ["express"]}, "overrides.lanes[0]: 'express' is none of batch, fast, slow"),
        ({"ttft_ms": {"express": 5}}, "overrides.ttft_ms: 'express' is none of batch, fast, slow"),
        ({"output_cap_mode": "cut"}, "overrides.output_cap_mode: 'cut' is none of clamp, fill, refuse"),
        ({"ttft_ms": {"fast": -5}}, "overrides.ttft_ms"),
        ({"kv_cap": 1.5}, "overrides.kv_cap"),
        ({"ttft_ms": float("inf")}, "overrides.ttft_ms"),
        ({"tpot_ms": {"fast": float("nan")}}, "overrides.tpot_ms"),
        ({"ttft_ms": 86_400_001}, "overrides.ttft_ms"),  # more than a day, and nanoseconds that no frame holds
        ({"queue_ttl_ms": 2**53}, "overrides.queue_ttl_ms"),
    ],
)
def test_a_wrong_override_is_refused_by_name(overrides, message):
    with pytest.raises(Invalid) as refused:
        sla_with(SEED_TIERS["standard"], overrides)
    assert message in refused.value.message


def test_a_stored_value_that_no_sla_may_have_costs_only_its_field():
    stored = {"rpm": 7, "tpot_ms": {"fast": None}, "weight": 2.0}
    sla, unreadable = stored_sla(SEED_TIERS["standard"], stored)
    assert (sla.rpm, sla.weight, sla.tpot_ms, unreadable) == (7, 2.0, SEED_TIERS["standard"].tpot_ms, ["tpot_ms"])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lanes": ()}, "lanes is empty"),
        ({"lanes": ("batch",), "default_lane": "fast"}, "does not allow"),
        ({"kv_reserve": 0.6, "kv_cap": 0.5}, "above kv_cap"),
        ({"committed_tpm": 11, "tpm": 10}, "above the ceiling"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(fields, message):
    with pytest.raises(Invalid, match=message):
        check_sla(Sla(**fields))


def test_the_seeded_tiers_hold_together_and_standard_allows_64_in_flight():
    for sla in SEED_TIERS.values():
        check_sla(sla)
    assert sorted(SEED_TIERS) == ["batch", "interactive", "standard"]
    assert SEED_TIERS["standard"].max_concurrency == 64


def test_the_default_tenant_has_no_ceiling():
    policy = policy_of("default", "", "standard", sla_with(SEED_TIERS["standard"], UNLIMITED), 0)
    ceilings = (
        "committed_tpm",
        "tpm",
        "rpm",
        "max_concurrency",
        "max_queued",
        "queue_ttl_s",
        "max_context_tokens",
        "tokens_per_day",
        "tokens_per_month",
    )
    assert [getattr(policy, name) for name in ceilings] == [None] * len(ceilings)
