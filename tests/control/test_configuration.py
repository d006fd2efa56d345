"""Configuration as code: the document, the plan, applying it; by the command line on the database and over HTTP on both databases."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from httpx import ASGITransport, AsyncClient
from hypothesis import given
from hypothesis import strategies as st
from litestar import Litestar

from appliance.cli.config_file import ConfigFileError, config_yaml, read_config_file
from appliance.domain.configuration.controller import ConfigurationController
from appliance.domain.configuration.decisions import Configuration, TenantSpec, configuration_faults, plan_changes
from appliance.domain.tenants.bootstrap import Control
from appliance.domain.tenants.routes import admin_router
from appliance.problems import EXCEPTION_HANDLERS
from tests.control.admin_api import by_hand
from tests.control.conftest import ADMIN_TOKEN, Fairlane

DOCUMENT = """
tiers:
  gold:
    weight: 8
    ttft_ms: {fast: 300}
    rpm: 600
tenants:
  acme:
    tier: gold
    overrides: {tpm: 1000, output_caps: {chat: 64}}
  globex:
    name: Globex Inc.
    tier: batch
    status: suspended
    trust_group: partners
"""


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "fairlane.yaml"
    path.write_text(DOCUMENT)
    return path


def test_a_plan_shows_each_difference_applying_it_leaves_none_and_all_of_it_is_audited(fairlane: Fairlane, document: Path) -> None:
    fairlane("migrate")
    planned = fairlane("config", "plan", str(document))
    assert planned.exit_code == 2, planned.output
    assert "+ tier gold\n" in planned.stdout and "    rpm: 600\n" in planned.stdout and "3 to add" in planned.stdout
    assert "left alone: tenant default, tier batch, tier interactive, tier standard" in planned.stdout
    applied = fairlane("config", "apply", str(document))
    assert applied.exit_code == 0 and "applied: 3 to add" in applied.stdout, applied.output
    assert fairlane("config", "plan", str(document)).exit_code == 0
    again = fairlane("config", "apply", str(document))
    assert again.exit_code == 0 and "nothing to change" in again.stdout
    tenants = {each["slug"]: each for each in json.loads(fairlane("tenant", "list", "--json").stdout)}
    assert (tenants["acme"]["effective"]["weight"], tenants["acme"]["effective"]["tpm"]) == (8.0, 1000)
    assert (tenants["globex"]["status"], tenants["globex"]["trust_group"]) == ("suspended", "partners")
    events = json.loads(fairlane("audit", "list", "--json").stdout)
    assert sorted(event["action"] for event in by_hand(events)) == ["tenant.create", "tenant.create", "tenant.update", "tier.create"]
    document.write_text(DOCUMENT.replace("rpm: 600", "rpm: 700").replace("tier: batch", "tier: standard"))
    changed = fairlane("config", "plan", str(document), "--json")
    assert changed.exit_code == 2
    changes = {change["name"]: change for change in json.loads(changed.stdout)["changes"]}
    assert changes["gold"]["fields"] == [{"field": "rpm", "before": 600, "after": 700}] and changes["gold"]["action"] == "update"
    assert '    tier: "batch" -> "standard"' in fairlane("config", "plan", str(document)).stdout


def test_an_export_is_the_database_and_a_plan_of_it_is_empty(fairlane: Fairlane, document: Path, tmp_path: Path) -> None:
    assert fairlane("config", "apply", str(document)).exit_code == 0
    key = fairlane("key", "create", "acme").stdout.strip()
    exported = tmp_path / "exported.yaml"
    assert fairlane("config", "export", str(exported)).exit_code == 0
    assert key[:6] not in exported.read_text()
    for prune in ((), ("--prune",)):
        empty = fairlane("config", "plan", str(exported), *prune)
        assert (empty.exit_code, empty.stdout) == (0, "nothing to change\n")


def test_only_prune_removes_and_the_plan_says_so_first(fairlane: Fairlane, document: Path) -> None:
    fairlane("config", "apply", str(document))
    document.write_text(DOCUMENT.partition("  globex:")[0])
    assert fairlane("config", "plan", str(document)).exit_code == 0
    planned = fairlane("config", "plan", str(document), "--prune")
    assert planned.exit_code == 2 and "- tenant globex\n" in planned.stdout and "- tier interactive\n" in planned.stdout
    pruned = fairlane("config", "apply", str(document), "--prune")
    assert pruned.exit_code == 0, pruned.output
    assert [each["slug"] for each in json.loads(fairlane("tenant", "list", "--json").stdout)] == ["acme"]
    assert list(json.loads(fairlane("tier", "list", "--json").stdout)) == ["gold"]


def test_a_plan_tells_in_its_line_that_a_removed_tenants_slug_stays_taken(fairlane: Fairlane, document: Path) -> None:
    fairlane("config", "apply", str(document))
    assert fairlane("tenant", "delete", "globex").exit_code == 0
    line = 1 + document.read_text().splitlines().index("  globex:")
    for command in ("plan", "apply"):
        told = fairlane("config", command, str(document))
        assert told.exit_code == 1 and f":{line}: " in told.stderr and "slug stays taken" in told.stderr, told.output
    told = fairlane("tenant", "create", "globex")
    assert told.exit_code == 1 and "was removed, and its slug stays taken" in told.stderr


def test_a_part_that_is_left_out_is_not_even_pruned(fairlane: Fairlane, document: Path) -> None:
    document.write_text("tenants: {default: {}}\n")
    fairlane("migrate")
    planned = json.loads(fairlane("config", "plan", str(document), "--prune", "--json").stdout)
    assert [(change["action"], change["name"]) for change in planned["changes"]] == [("update", "default")]


def test_a_plan_of_an_earlier_version_is_refused_unless_told(fairlane: Fairlane, document: Path) -> None:
    fairlane("migrate")
    version = json.loads(fairlane("config", "plan", str(document), "--json").stdout)["version"]
    fairlane("tenant", "create", "initech")
    refused = fairlane("config", "apply", str(document), "--plan-version", str(version))
    assert refused.exit_code == 1 and "plan again" in refused.stderr
    assert "acme" not in fairlane("tenant", "list").stdout
    told = fairlane("config", "apply", str(document), "--plan-version", str(version), "--even-if-changed")
    assert told.exit_code == 0 and "acme" in fairlane("tenant", "list").stdout


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("tenants:\n  acme:\n    teir: gold\n", 3, "unknown field 'teir': did you mean 'tier'?"),
        ("tiers:\n  gold:\n    weight: 1\n    rmp: 5\n", 4, "unknown field 'rmp': did you mean 'rpm'?"),
        ("tenants:\n  acme:\n    overrides:\n      rpm: 1\n      tmp: 5\n", 5, "did you mean 'tpm'?"),
        ("tennants: {}\n", 1, "did you mean 'tenants'?"),
        ("tiers:\n  gold:\n    weight: -1\n", 3, "weight"),
        ("tiers:\n  gold:\n    rpm: many\n", 3, "expected `int"),
        ("tiers:\n  gold:\n    kv_cap: 0.1\n    kv_reserve: 0.2\n", 4, "above kv_cap"),
        ("tenants:\n  acme:\n    status: deleted\n", 3, "'deleted' is none of active, suspended"),
        ("tenants:\n  acme:\n    tier: [gold]\n", 3, "expected `str`"),
        ("tenants:\n  ACME: {}\n", 2, "a-z"),
        ("tenants:\n  acme:\n    name: ''\n", 3, "printable"),
        ("tenants:\n  acme: {}\n  acme: {}\n", 3, "stands here twice, first in line 2"),
        ("tenants:\n  12: {}\n", 2, "write it in quotes"),
        ("tenants:\n  acme: gold\n", 2, "must hold `key: value` pairs"),
        ("tenants: [acme]\n", 1, "must hold `key: value` pairs"),
        ("tenants:\n  acme: {\n", 3, "no valid YAML"),
        ("- a\n", 1, "the document must hold"),
        ("tenants: !!python/object/apply:os.system ['true']\n", 1, "no valid YAML"),
    ],
)
def test_a_mistake_is_told_with_its_line(tmp_path: Path, text: str, line: int, words: str) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(text)
    with pytest.raises(ConfigFileError) as refused:
        read_config_file(path)
    assert refused.value.message.startswith(f"{path}:{line}: ") and words in refused.value.message, refused.value.message


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("tenants:\n  acme:\n    name: A\n    tier: gold\n", 4, "there is no tier 'gold'; the tiers are batch, interactive, standard"),
        ("tenants:\n  acme:\n    tier: batch\n    overrides: {default_lane: fast}\n", 4, "default_lane"),
    ],
)
def test_what_only_the_database_can_know_is_told_with_its_line_too(fairlane: Fairlane, tmp_path: Path, text, line, words) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(text)
    fairlane("migrate")
    for command in ("plan", "apply"):
        refused = fairlane("config", command, str(path))
        assert refused.exit_code == 1 and f"{path}:{line}: " in refused.stderr and words in refused.stderr, refused.stderr


FAULTY = """
tiers:
  gold: {rmp: 5}
  iron: {committed_tpm: 500, lanes: null}
tenants:
  acme:
    teir: gold
    name: ''
    overrides:
      rpm: many
  beta: 5
"""


def test_all_mistakes_of_a_file_are_told_at_once_each_with_its_line(fairlane: Fairlane, tmp_path: Path) -> None:
    fairlane("migrate")
    told = fairlane("config", "plan", "-", given=FAULTY)
    places = [line.removeprefix("Error: ").partition(": ")[0] for line in told.stderr.splitlines()]
    assert told.exit_code == 1 and places == [f"<stdin>:{line}" for line in (3, 4, 7, 8, 10, 11)], told.stderr
    assert "did you mean 'rpm'?" in told.stderr and "tiers.iron.lanes: it can not be null" in told.stderr
    between = "tiers: {iron: {committed_tpm: 500}}\ntenants:\n  a:\n    tier: iron\n    overrides:\n      tpm: 100\n  b: {tier: none}\n"
    told = fairlane("config", "apply", "-", given=between)
    assert told.stderr.splitlines() == [
        "Error: <stdin>:6: with tier 'iron', committed_tpm is 500, above the ceiling tpm (100)",
        "<stdin>:7: there is no tier 'none'; the tiers are batch, interactive, iron, standard",
    ]


def test_a_dash_is_standard_output_and_input(fairlane: Fairlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fairlane("migrate")
    exported = fairlane("config", "export", "-")
    assert exported.exit_code == 0 and exported.stdout == fairlane("config", "export").stdout and not (tmp_path / "-").exists()
    assert fairlane("config", "plan", "-", given=exported.stdout).stdout == "nothing to change\n"
    applied = fairlane("config", "apply", "-", given="tenants: {acme: {}}")
    assert applied.exit_code == 0 and "applied: 1 to add" in applied.stdout


@pytest.mark.parametrize("arguments", [("plan",), ("plan", "f", "--no-such"), ("plan", "nowhere.yaml"), ("plan", "f", "--server", "x")])
def test_an_error_is_never_taken_for_changes(fairlane: Fairlane, document: Path, arguments: tuple[str, ...]) -> None:
    assert fairlane("config", *(str(document) if each == "f" else each for each in arguments)).exit_code == 1


SLUGS = st.sampled_from(["a", "b", "c"])
SLAS = st.fixed_dictionaries({}, optional={"rpm": st.integers(1, 9), "weight": st.floats(0.5, 4), "ttft_ms": st.just({"fast": 5.0})})
DOCUMENTS = st.builds(
    lambda tiers, tenants: Configuration(tiers={"base": {}, **tiers}, tenants=tenants),
    st.dictionaries(SLUGS, SLAS),
    st.dictionaries(SLUGS, st.builds(TenantSpec, tier=st.just("base"), overrides=SLAS, status=st.sampled_from(["active", "suspended"]))),
)


@given(present=DOCUMENTS, wanted=DOCUMENTS)
def test_a_document_differs_from_itself_in_nothing_and_from_another_in_what_it_names(present: Configuration, wanted: Configuration) -> None:
    assert plan_changes(1, wanted, wanted, prune=True)[0].changes == []
    plan, _ = plan_changes(1, present, wanted, prune=True)
    removed = {(change.kind, change.name) for change in plan.changes if change.action == "delete"}
    assert removed == {("tier", name) for name in present.tiers or {} if name not in (wanted.tiers or {})} | {
        ("tenant", slug) for slug in present.tenants or {} if slug not in (wanted.tenants or {})
    }
    assert [change for change in plan_changes(1, present, wanted, prune=False)[0].changes if change.action == "delete"] == []


@given(wanted=DOCUMENTS)
def test_a_document_written_as_yaml_reads_as_itself(wanted: Configuration, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("yaml") / "f.yaml"
    path.write_text(config_yaml(wanted))
    assert read_config_file(path).configuration == wanted
    assert configuration_faults(wanted) == []


def test_the_place_of_a_mistake_is_its_path() -> None:
    (fault,) = configuration_faults(Configuration(tenants={"acme": TenantSpec(overrides={"rpm": 0})}))
    assert fault.param == "tenants.acme.overrides.rpm"


@pytest.fixture
async def client(control: Control) -> AsyncIterator[AsyncClient]:
    app = Litestar([admin_router(control, ConfigurationController)], exception_handlers=EXCEPTION_HANDLERS, logging_config=None)
    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    transport = ASGITransport(app, raise_app_exceptions=False)  # pyright: ignore[reportArgumentType]
    async with AsyncClient(transport=transport, base_url="http://test/api/v1/config", headers=headers) as opened:
        yield opened


async def test_over_http_a_document_is_applied_whole_or_not_at_all_and_holds_at_once(client: AsyncClient, control: Control) -> None:
    wanted: dict[str, Any] = {"tiers": {"gold": {"rpm": 5}}, "tenants": {"acme": {"tier": "gold"}}}
    planned = (await client.post("/plan", json={"config": wanted})).json()
    assert [(each["action"], each["name"]) for each in planned["changes"]] == [("create", "gold"), ("create", "acme")]
    assert "acme" not in control.directory.snapshot.policies
    applied = await client.post("/apply", json={"config": wanted, "version": planned["version"]})
    assert applied.status_code == 200 and control.directory.snapshot.policies["acme"].rpm == 5
    stale = await client.post("/apply", json={"config": {"tenants": {"other-one": {}}}, "version": planned["version"]})
    assert (stale.status_code, stale.json()["error"]["code"]) == (409, "version_conflict")
    version = control.directory.snapshot.version
    assert (await client.post("/apply", json={"config": wanted})).json()["changes"] == []
    await control.directory.refresh()
    assert control.directory.snapshot.version == version, "without a change nothing is written"
    broken = {"tenants": {"fine": {}, "zeta": {"tier": "nowhere"}}}
    refused = await client.post("/apply", json={"config": broken})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "tenants.zeta.tier"
    faulty = {"tiers": {"gold": {"rmp": 5, "tpm": 0}}, "tenants": {"ACME": {}}}
    refused = (await client.post("/plan", json={"config": faulty})).json()["error"]
    assert [fault["param"] for fault in refused["faults"]] == ["tiers.gold.rmp", "tiers.gold.tpm", "tenants.ACME"]
    assert all(fault["message"] in refused["message"] for fault in refused["faults"])
    narrow = {
        "tiers": {"gold": {"rpm": 5, "lanes": ["slow"]}},
        "tenants": {"acme": {"tier": "gold", "overrides": {"default_lane": "slow"}}},
    }
    assert (await client.post("/apply", json={"config": narrow})).status_code == 200
    contradiction = {"tiers": {"gold": {"lanes": ["fast"]}}}
    refused = await client.post("/apply", json={"config": contradiction})
    assert refused.status_code == 400 and "tenants.acme" in refused.json()["error"]["message"]
    await control.directory.refresh()
    assert control.directory.snapshot.policies["acme"].lanes == ("slow",) and "fine" not in control.directory.snapshot.policies
    taken = await client.post("/apply", json={"config": {"tiers": {}}, "prune": True})
    assert (taken.status_code, taken.json()["error"]["code"]) == (409, "tier_in_use")
    exported = (await client.get("")).json()
    assert exported["config"]["tenants"]["acme"] == {"tier": "gold", "overrides": {"default_lane": "slow"}}


async def test_an_unknown_field_of_a_tenant_is_refused_over_http_too(client: AsyncClient) -> None:
    for config in ({"tenants": {"acme": {"teir": "x"}}}, {"tennants": {}}, {"tiers": {"gold": {"rmp": 1}}}):
        refused = await client.post("/plan", json={"config": config})
        assert refused.status_code == 400, refused.text
