"""The command line: in this process through click's runner, and once as real processes beside an open control plane."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest

from appliance.cli.main import cli
from appliance.domain.access.principal import Limits, Principal, Scope
from appliance.domain.access.snapshot import Admin
from appliance.domain.slas.decisions import SEED_TIERS
from appliance.domain.tenants.bootstrap import Control, open_control
from appliance.errors import Unauthenticated
from appliance.settings import Settings
from tests.control.admin_api import by_hand
from tests.control.conftest import ADMIN_TOKEN, API_KEY
from tests.control.postgres import own_postgres
from tests.control.test_migrations import REVISIONS, execute


def ask_server[R](data_dir: Path, question: Callable[[Control], R]) -> R:
    """What a server started on this directory answers."""

    async def ask() -> R:
        control = await open_control(Settings(data_dir=str(data_dir)))
        try:
            return question(control)
        finally:
            await control.close()

    return asyncio.run(ask())


def principal_of(data_dir: Path, key: str) -> Principal:
    """What a server started on this directory takes the key for."""
    return ask_server(data_dir, lambda control: control.directory.authenticate(key, None))


def admin_of(data_dir: Path, token: str) -> Admin:
    """What it takes an administrator's token for."""
    return ask_server(data_dir, lambda control: control.directory.authenticate_admin(token, Scope.ADMIN_READ))


def test_a_tenant_and_a_key_made_by_the_cli_are_a_principal_of_the_server(fairlane, tmp_path):
    made = fairlane("tenant", "create", "acme", "--tier", "interactive", "--set", "rpm=60", "--set", 'ttft_ms={"fast": 250}')
    assert made.exit_code == 0, made.output
    key = fairlane("key", "create", "acme", "--name", "ci", "--scope", "inference", "--lane", "fast")
    assert key.exit_code == 0, key.output
    principal = principal_of(tmp_path, key.stdout.strip())  # alone on stdout
    assert (principal.tenant_id, principal.policy.tier, principal.policy.rpm) == ("acme", "interactive", 60)
    assert (principal.policy.ttft_s, principal.lanes) == ({"fast": 0.25}, {"fast"})
    assert "not shown again" in key.stderr


def test_a_key_made_by_the_cli_has_its_own_limits(fairlane, tmp_path):
    given = ("--rpm", "3", "--tpm", "40", "--tokens-per-day", "500", "--tokens-per-month", "6000")
    key = fairlane("key", "create", "default", *given).stdout.strip()
    assert principal_of(tmp_path, key).limits == Limits(3, 40, 500, 6000)


def test_a_key_revoked_by_the_cli_is_refused(fairlane, tmp_path):
    key = fairlane("key", "create", "default").stdout.strip()
    listed = json.loads(fairlane("key", "list", "default", "--json").stdout)
    assert [each["last4"] for each in listed] == [key[-4:]]
    assert fairlane("key", "revoke", "default", listed[0]["id"]).exit_code == 0
    with pytest.raises(Unauthenticated, match="revoked"):
        principal_of(tmp_path, key)


def test_tenants_tiers_and_keys_change_by_the_cli(fairlane, tmp_path):
    fairlane("tenant", "create", "acme", "--set", "rpm=60", "--set", "tpm=5")
    key = fairlane("key", "create", "acme").stdout.strip()
    updated = fairlane("tenant", "update", "acme", "--tier", "interactive", "--set", "max_queued=2", "--unset", "tpm")
    assert updated.exit_code == 0 and "version 2" in updated.stdout, updated.output
    assert "version 2" in fairlane("tier", "update", "interactive", "--set", "weight=9").stdout
    policy = principal_of(tmp_path, key).policy
    assert (policy.tier, policy.rpm, policy.tpm, policy.max_queued, policy.weight) == ("interactive", 60, None, 2, 9.0)
    key_id = json.loads(fairlane("key", "list", "acme", "--json").stdout)[0]["id"]
    newer = fairlane("key", "rotate", "acme", key_id, "--grace-s", "0").stdout.strip()
    assert principal_of(tmp_path, newer).tenant_id == "acme"
    with pytest.raises(Unauthenticated, match="expired"):
        principal_of(tmp_path, key)
    assert fairlane("tier", "update", "gold", "--set", "weight=9").exit_code == 1
    assert fairlane("tier", "create", "gold", "--set", 'objective={"fast": 0.999}').exit_code == 0
    shown = [line.split() for line in fairlane("tier", "show", "gold").stdout.splitlines()]
    assert shown[0] == ["tier", "gold,", "version", "1"] and ["objective", '{"fast":0.999}'] in shown and ["rpm", "-"] in shown
    assert json.loads(fairlane("tier", "show", "gold", "--json").stdout)["objective"] == {"fast": 0.999}
    assert "no tier 'silver'" in fairlane("tier", "show", "silver").stderr
    assert fairlane("tenant", "update", "acme", "--tier", "gold").exit_code == 0
    assert principal_of(tmp_path, newer).policy.objective_of("fast") == 0.999
    assert "acme" in fairlane("tier", "delete", "gold").stderr
    assert fairlane("tier", "delete", "batch").exit_code == 0 and fairlane("tier", "delete", "batch").exit_code == 1
    assert fairlane("tenant", "delete", "acme").exit_code == 0
    with pytest.raises(Unauthenticated):
        principal_of(tmp_path, newer)


def test_changes_by_the_cli_are_audited_and_listed(fairlane):
    fairlane("tenant", "create", "acme")
    key = fairlane("key", "create", "acme").stdout.strip()
    events = json.loads(fairlane("audit", "list", "--json").stdout)
    assert [event["action"] for event in by_hand(events)] == ["key.create", "tenant.create"]
    first_start = {(event["action"], event["target"]) for event in events if event["source"] == "first start"}
    assert first_start == {("tenant.create", "tenant:default"), *(("tier.create", f"tier:{name}") for name in SEED_TIERS)}
    assert events[0]["actor"].startswith("cli:") and events[0]["source"] == "cli" and events[0]["after"]["last4"] == key[-4:]
    table = fairlane("audit", "list", "--target", "tenant:acme").stdout
    assert "tenant.create" in table and "key.create" in table and "tenant:default" not in table and key not in table


def test_administrators_are_made_changed_and_removed_by_the_cli(fairlane, tmp_path):
    made = fairlane("admin", "create", "alice", "--role", "owner", "--password-stdin", given="a horse, a staple\n")
    assert made.exit_code == 0 and "staple" not in made.output, made.output
    assert fairlane("admin", "create", "robot", "--no-password").exit_code == 0
    assert fairlane("admin", "create", "bob", given="a horse, a staple\na horse, a staple\n").exit_code == 0, "asked for twice"
    token = fairlane("admin", "token", "alice", "--for", "ci", "--role", "operator")
    assert "not shown again" in token.stderr
    admin = admin_of(tmp_path, token.stdout.strip())
    assert (admin.actor, sorted(admin.scopes)) == ("admin:alice", ["admin:read", "admin:write"])
    listed = {each["name"]: each for each in json.loads(fairlane("admin", "list", "--json").stdout)}
    assert {name: (each["role"], each["has_password"]) for name, each in listed.items()} == {
        "alice": ("owner", True), "bob": ("viewer", True), "robot": ("viewer", False)
    }  # fmt: skip
    assert "make another one first" in fairlane("admin", "disable", "alice").stderr
    assert fairlane("admin", "role", "bob", "owner").exit_code == 0
    assert fairlane("admin", "disable", "alice").exit_code == 0
    with pytest.raises(Unauthenticated, match="revoked"):
        admin_of(tmp_path, token.stdout.strip())
    assert fairlane("admin", "enable", "alice").exit_code == 0
    token_id = json.loads(fairlane("admin", "tokens", "alice", "--json").stdout)[0]["id"]
    assert [word for word in fairlane("admin", "tokens", "alice").stdout.split() if word in ("ci", "operator")] == ["ci", "operator"]
    assert fairlane("admin", "revoke-token", "alice", token_id).exit_code == 0
    with pytest.raises(Unauthenticated, match="revoked"):
        admin_of(tmp_path, token.stdout.strip())
    assert fairlane("admin", "password", "robot", "--password-stdin", given="another horse, staple\n").exit_code == 0
    assert fairlane("admin", "delete", "robot").exit_code == 0
    table = fairlane("admin", "list").stdout
    assert "alice" in table and "robot" not in table
    audit = fairlane("audit", "list").stdout
    assert "admin.token.create" in audit and "horse" not in audit


def test_lists_are_tables_for_people_and_json_for_programs(fairlane):
    fairlane("tenant", "create", "acme", "--set", "rpm=60")
    table = fairlane("tenant", "list").stdout
    assert ["acme", "acme", "active", "standard", '{"rpm":60}'] in [line.split() for line in table.splitlines()]
    tenants = {tenant["slug"]: tenant for tenant in json.loads(fairlane("tenant", "list", "--json").stdout)}
    assert tenants["acme"]["effective"]["rpm"] == 60
    assert set(json.loads(fairlane("tier", "list", "--json").stdout)) == {"batch", "interactive", "standard"}
    assert "standard" in fairlane("tier", "list").stdout


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (("tenant", "create", "ACME"), 2, "a-z"),
        (("tenant", "create", "acme", "--tier", "gold"), 2, "batch, interactive, standard"),
        (("tenant", "create", "acme", "--set", "rpm"), 2, "FIELD=VALUE"),
        (("tenant", "create", "acme", "--set", "rmp=1"), 2, "the fields are weight"),
        (("tenant", "create", "acme", "--set", "lanes=null"), 2, "overrides.lanes: it can not be null"),
        (("tenant", "update", "default", "--unset", "rmp"), 2, "--unset 'rmp' is no field of an SLA"),
        (("usage", "--tenant", "nobody"), 1, "no tenant 'nobody'"),
        (("usage", "--from", "today"), 2, "2030-01-31T12:00:00Z"),
        (("tenant", "create", "default"), 1, "already"),
        (("key", "create", "nobody"), 1, "no tenant 'nobody'"),
        (("key", "create", "default", "--scope", "root"), 2, "root"),
        (("key", "create", "default", "--expires", "soon"), 2, "2030-01-31T12:00:00Z"),
        (("key", "revoke", "default", "key_1"), 1, "no key 'key_1'"),
        (("admin", "create", "Alice", "--no-password"), 2, "a-z"),
        (("admin", "create", "alice"), 2, "--password-stdin"),
        (("admin", "create", "alice", "--role", "god"), 2, "owner"),
        (("admin", "disable", "nobody"), 1, "no administrator 'nobody'"),
        (("tenant", "list", "--database-url", "mysql://x"), 2, "sqlite:///path"),
        (("tenant", "list", "--database-url", "postgresql://nobody@127.0.0.1:1/none"), 1, "does not answer"),
        (("serve", "--port", "many"), 2, "0 to 65535"),
        (("serve", "one-model", "--model", "another"), 2, "give the model once"),
        (("serve", "--prot", "1"), 2, "--port"),
        (("fly",), 2, "fly"),
    ],
)
def test_a_command_that_can_not_be_done_says_why_and_exits_with_its_code(
    fairlane, tmp_path, migrated_sqlite, arguments, exit_code, message
):
    (tmp_path / "fairlane.db").write_bytes(migrated_sqlite.read_bytes())
    result = fairlane(*arguments)
    assert result.exit_code == exit_code, result.output
    assert message in result.stderr
    assert result.stdout == ""


LOOKING = ("tenant list", "tenant show acme", "key list acme", "tier list", "tier show batch", "admin list", "admin tokens alice")
LOOKING += ("audit list", "usage", "config export", "config plan FILE", "backup TARGET")
CHANGING = ("tenant update acme", "tenant delete acme", "key revoke acme key_1", "key rotate acme key_1", "key new-pepper --yes")
CHANGING += ("tier update standard --set rpm=1", "tier delete batch", "admin disable alice", "admin token alice", "admin delete alice")


@pytest.mark.parametrize("command", [*LOOKING, *CHANGING])
def test_a_command_that_needs_a_database_makes_none_and_says_so(fairlane, tmp_path, monkeypatch, command):
    folder, file = tmp_path / "var", tmp_path / "file"
    file.write_text("{}")
    monkeypatch.setenv("FAIRLANE_DATA_DIR", str(folder))
    done = fairlane(*command.replace("FILE", str(file)).replace("TARGET", str(tmp_path / "target")).split())
    assert done.exit_code == 1 and f"there is no database {folder / 'fairlane.db'}" in done.stderr, done.output
    assert "fairlane migrate" in done.stderr and "--data-dir" in done.stderr
    assert not folder.exists() and not (tmp_path / "target").exists()


def test_a_database_without_a_schema_is_not_looked_at(fairlane, tmp_path):
    (tmp_path / "fairlane.db").touch()
    done = fairlane("tenant", "list")
    assert done.exit_code == 1 and "the database is empty" in done.stderr and "fairlane migrate" in done.stderr
    assert "from empty to revision" in fairlane("migrate").stdout and not (tmp_path / "key-pepper").exists()


def test_one_tenant_is_shown_with_what_it_runs_under_and_where_that_comes_from(fairlane):
    fairlane("tenant", "create", "acme", "--tier", "interactive", "--set", "rpm=60", "--set", "shadow_mode=false")
    shown = fairlane("tenant", "show", "acme").stdout
    lines = [line.split(maxsplit=2) for line in shown.splitlines()]
    assert shown.startswith("acme: acme, active, tier interactive, version 1\n")
    for line in (["rpm", "60", "override"], ["weight", "4.0", "tier interactive"], ["tpm", "-", "tier interactive"]):
        assert line in [[part.strip() for part in each] for each in lines]
    assert ["shadow_mode", "false", "override"] in [[part.strip() for part in each] for each in lines], "false is a value"
    as_json = json.loads(fairlane("tenant", "show", "acme", "--json").stdout)
    assert (as_json["effective"]["rpm"], as_json["sources"]["rpm"], as_json["sources"]["weight"]) == (60, "override", "tier")


def test_contracts_that_may_not_be_kept_are_told_by_the_command_that_makes_them(fairlane, tmp_path):
    unknown = fairlane("tenant", "create", "acme", "--set", "committed_tpm=700")
    assert unknown.exit_code == 0 and "is not known" in unknown.stderr
    asyncio.run(
        execute(f"sqlite+aiosqlite:///{tmp_path / 'fairlane.db'}", "INSERT INTO installation_state VALUES ('capacity_tpm', 0, '600')")
    )
    for command in (("tenant", "update", "acme", "--name", "A"), ("tier", "update", "batch", "--set", "rpm=5")):
        told = fairlane(*command)
        assert told.exit_code == 0 and "100 more than the 600" in told.stderr, told.output
    (tmp_path / "f.yaml").write_text("tenants: {acme: {overrides: {committed_tpm: 601}}}")
    planned = fairlane("config", "plan", str(tmp_path / "f.yaml"))
    assert planned.exit_code == 2 and "1 more than the 600" in planned.stderr
    assert fairlane("config", "plan", "-", "--prune", given="tenants: {}").stderr == "", "a pruned tenant has no contract"
    assert fairlane("config", "apply", str(tmp_path / "f.yaml")).stderr.count("1 more than the 600") == 1
    assert fairlane("tenant", "update", "acme", "--set", "committed_tpm=600").stderr == ""


def test_usage_is_shown_by_tenant_as_a_table_json_or_csv_like_the_api_shows_it(fairlane, tmp_path):
    fairlane("migrate")
    row = "'default', 'key_1', 'm', 'fast', 'completed', 3, 20, 5, 7"
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    url = f"sqlite+aiosqlite:///{tmp_path / 'fairlane.db'}"
    asyncio.run(
        execute(url, *(f"INSERT INTO usage_{kind} VALUES ('{now:%Y-%m-%d %H:%M:%S}.000000', {row})" for kind in ("hour", "minute")))
    )
    table = [line.split() for line in fairlane("usage", "--tenant", "default").stdout.splitlines()]
    assert table[1][2:] == ["default", "key_1", "m", "fast", "completed", "3", "20", "5", "7"]
    assert table[2] == ["all", "-", "-", "-", "-", "-", "3", "20", "5", "7"]
    as_json = json.loads(fairlane("usage", "--resolution", "minute", "--json").stdout)
    assert as_json["totals"] == {"requests": 3, "prompt_tokens": 20, "cached_tokens": 5, "generated_tokens": 7}
    assert fairlane("usage", "--csv").stdout.splitlines()[1].endswith(",default,key_1,m,fast,completed,3,20,5,7")
    assert json.loads(fairlane("usage", "--to", f"{now.isoformat()}", "--json").stdout)["usage"] == []


def test_a_database_whose_pepper_is_lost_is_refused_with_what_to_do_and_can_begin_anew(fairlane, tmp_path):
    key = fairlane("key", "create", "default").stdout.strip()
    token = fairlane("admin", "create", "alice", "--role", "owner", "--no-password") and fairlane("admin", "token", "alice").stdout.strip()
    (tmp_path / "key-pepper").unlink()
    for command in (("key", "create", "default"), ("serve", "--port", "0")):
        refused = fairlane(*command)
        assert refused.exit_code == 2 and "made with a pepper that is not here: there is none in" in refused.stderr, refused.output
        assert "fairlane key new-pepper" in refused.stderr and not (tmp_path / "key-pepper").exists()
    assert fairlane("tenant", "list").exit_code == 0, "looking needs none"
    assert fairlane("key", "new-pepper", given="n\n").exit_code == 1 and not (tmp_path / "key-pepper").exists()
    begun = fairlane("key", "new-pepper", "--yes")
    assert begun.exit_code == 0 and "1 keys and 1 tokens of administrators are revoked" in begun.stdout, begun.output
    for old in (key, token):
        with pytest.raises(Unauthenticated):
            principal_of(tmp_path, old)
    assert principal_of(tmp_path, fairlane("key", "create", "default").stdout.strip()).tenant_id == "default"
    event = json.loads(fairlane("audit", "list", "--target", "installation", "--json").stdout)[0]
    assert (event["action"], event["after"]) == ("pepper.forget", {"keys_revoked": 1, "tokens_revoked": 1})


def test_migrate_brings_an_empty_database_up_and_is_no_error_again(fairlane):
    assert f"from empty to revision {REVISIONS[-1]}" in fairlane("migrate").stdout
    assert "already" in fairlane("migrate").stdout


def test_migrate_waits_for_a_database_that_does_not_answer_yet_and_no_longer_than_it_was_told(fairlane, tmp_path):
    with own_postgres() as server:
        server.stop()
        start = threading.Timer(0.3, server.start)
        start.start()
        url = f"{server.url}/postgres"
        done = fairlane("migrate", "--wait-s", "60", "--database-url", url)
        start.join()
        assert done.exit_code == 0 and f"to revision {REVISIONS[-1]}" in done.stdout, done.output
    gone = fairlane("migrate", "--wait-s", "0.1", "--database-url", url)
    assert gone.exit_code == 1 and "does not answer" in gone.stderr


def test_neither_migrate_nor_serve_touches_a_database_of_a_newer_version(fairlane, tmp_path):
    fairlane("migrate")
    asyncio.run(execute(f"sqlite+aiosqlite:///{tmp_path / 'fairlane.db'}", "UPDATE alembic_version SET version_num = '9999'"))
    for command in (("migrate",), ("serve", "--port", "0")):
        refused = fairlane(*command)
        assert refused.exit_code == 1, refused.output
        assert "start the newer Fairlane" in refused.stderr


def test_settings_are_shown_with_their_source_and_without_secrets(fairlane, monkeypatch):
    monkeypatch.setenv("FAIRLANE_MAX_NUM_SEQS", "7")
    monkeypatch.setenv("FAIRLANE_BOOTSTRAP_API_KEY", API_KEY)
    monkeypatch.setenv("FAIRLANE_PROT", "1")
    shown = fairlane("settings")
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert ["engine.max_num_seqs", "7", "FAIRLANE_MAX_NUM_SEQS"] in lines
    assert ["port", "8000", "default"] in lines
    assert API_KEY not in shown.output
    assert "did you mean 'FAIRLANE_PORT'" in shown.stderr


def test_every_command_and_option_has_help():
    def walk(command: click.Command, path: str) -> list[str]:
        lacking = [] if command.help else [path]
        lacking += [f"{path} {option.name}" for option in command.params if isinstance(option, click.Option) and not option.help]
        children = command.commands.items() if isinstance(command, click.Group) else ()
        return lacking + [each for name, child in children for each in walk(child, f"{path} {name}")]

    assert walk(cli, "fairlane") == []


def test_the_version_is_printed(fairlane):
    assert fairlane("--version").stdout.startswith("fairlane, version ")


def test_model_info_asks_the_engine_and_passes_its_failure_on(capfd, fairlane):
    assert fairlane("model", "info", "smollm2-135m-instruct").exit_code == 0
    assert "23,040 bytes" in capfd.readouterr().out
    assert fairlane("model", "info", "--no-such-option").exit_code == 2


async def test_a_running_server_follows_what_another_process_does(tmp_path, control: Control, settings: Settings):
    environ = {
        **os.environ,
        "FAIRLANE_DATA_DIR": settings.data_dir,
        "FAIRLANE_DATABASE_URL": settings.database_url,
        "FAIRLANE_BOOTSTRAP_ADMIN_TOKEN": ADMIN_TOKEN,
    }
    command = [sys.executable, "-m", "appliance.cli.main", "key", "create", "default", "--name", "from outside"]
    done = await asyncio.to_thread(subprocess.run, command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    await control.directory.poll()
    assert control.directory.authenticate(done.stdout.strip(), None).tenant_id == "default"
