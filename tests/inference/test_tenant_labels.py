"""Only the busiest tenants have series of their own."""

from appliance.telemetry.tenant_labels import OTHER, TenantLabels


def labels(limit: int, *tenants: str) -> TenantLabels:
    made = TenantLabels(limit)
    made.sync(tenants)
    return made


def test_the_first_tenants_get_labels_while_there_is_room() -> None:
    made = labels(2, "a", "b", "c")
    assert [made.of(tenant) for tenant in ("a", "b", "c", "unknown")] == ["a", "b", OTHER, OTHER]


def test_a_removed_tenant_loses_its_label_and_makes_room() -> None:
    made = labels(2, "a", "b", "c")
    assert made.sync(["b", "c"]) == ("a",)
    assert made.own == ("b", "c")


def test_a_much_busier_tenant_takes_the_place_of_the_idlest() -> None:
    made = labels(2, "a", "b", "c", "d")
    for tenant, tokens in {"a": 100, "b": 10, "c": 21, "d": 19}.items():
        made.note(tenant, tokens)
    assert made.rebalance() == ("b",)
    assert set(made.own) == {"a", "c"}


def test_tenants_that_are_alike_keep_what_they_have() -> None:
    made = labels(1, "a", "b")
    made.note("a", 100)
    made.note("b", 199)
    assert made.rebalance() == () and made.own == ("a",)


def test_activity_of_long_ago_fades_and_is_forgotten() -> None:
    made = labels(1, "a", "b")
    made.note("a", 1000)
    made.note("b", 900)
    for _ in range(10):
        assert made.rebalance() == ()
    made.note("b", 5)
    assert made.rebalance() == ("a",)


def test_strangers_never_get_a_label() -> None:
    made = labels(1, "a")
    made.note("stranger", 1e9)
    assert made.rebalance() == () and made.of("stranger") == OTHER
