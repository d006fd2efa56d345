"""docker/compose.yaml and what belongs to it, without an engine. `make docker-smoke` runs it."""

import re
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from appliance.settings import FILE_VARIANTS, OPTIONS, load_settings, sqlalchemy_url

DOCKER = Path(__file__).resolve().parents[2] / "docker"
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = ("migrate", "appliance", "model", "appliance-gpu")
EACH_SERVICE = pytest.mark.parametrize("name", SERVICES)


def test_the_profiles_are_those_that_the_documents_name():
    by_profile: dict[str, set[str]] = {}
    for name, service in SERVICES.items():
        for profile in service.get("profiles", ("",)):
            by_profile.setdefault(profile, set()).add(name)
    assert by_profile == {
        "": {"migrate", "appliance"},
        "gpu": {"model", "appliance-gpu"},
        "pg": {"postgres"},
        "observability": {"prometheus", "alertmanager", "grafana"},
        "tls": {"nginx"},
    }


@EACH_SERVICE
def test_an_image_of_others_has_a_pinned_tag_and_ours_a_chosen_one(name):
    image = SERVICES[name]["image"]
    assert image.startswith("${IMAGE:-fairlane}:${") if name in OURS else re.fullmatch(r"[a-z/]+:v?\d+(\.\d+)+", image), image


@EACH_SERVICE
def test_only_the_proxy_is_reached_from_outside_by_default(name):
    for port in SERVICES[name].get("ports", ()):
        assert port.startswith(("127.0.0.1:", "${BIND:-127.0.0.1}:")) or name == "nginx", port


@EACH_SERVICE
def test_a_secret_is_a_file_and_never_a_value(name):
    variables = SERVICES[name].get("environment", {})
    for variable, value in variables.items():
        if re.search(r"PASSWORD|TOKEN|SECRET|KEY|PEPPER|DATABASE_URL", variable):
            assert variable.endswith(("_FILE", "_PATH")) and value.startswith("/run/secrets/"), variable
            assert value.removeprefix("/run/secrets/") in SERVICES[name]["secrets"], variable
    assert set(SERVICES[name].get("secrets", ())) <= set(COMPOSE["secrets"])


@pytest.mark.parametrize("name", OURS)
def test_our_containers_have_a_read_only_root_and_no_capabilities(name):
    service = SERVICES[name]
    assert service["read_only"] is True and service["cap_drop"] == ["ALL"] and "no-new-privileges:true" in service["security_opt"]
    known = {option.env for option in OPTIONS} | {f"FAIRLANE_{each.upper()}_FILE" for each in FILE_VARIANTS}
    assert {each for each in service["environment"] if each.startswith("FAIRLANE_")} <= known


@pytest.mark.parametrize("name", OURS)
def test_up_builds_our_image_where_there_is_none(name):
    """Without `build` Compose would look for it in a registry."""
    assert SERVICES[name]["build"]["dockerfile"] == "docker/Dockerfile"


@EACH_SERVICE
def test_a_log_does_not_fill_the_disk(name):
    assert set(SERVICES[name]["logging"]["options"]) == {"max-size", "max-file"}


def test_cards_are_named_as_every_compose_takes_them():
    """Compose 1.29, which Debian 12 has, refuses the whole file for a variable where a count of cards stands, whatever the profile."""
    for service in SERVICES.values():
        for device in service.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices", ()):
            assert "count" not in device and device["device_ids"], device


def test_only_the_service_that_pulls_has_the_hubs_token():
    assert [name for name, service in SERVICES.items() if "hf_token" in service.get("secrets", ())] == ["model"]


@pytest.mark.parametrize("name", ["appliance", "appliance-gpu"])
def test_the_appliance_serves_after_the_migration_and_gets_time_to_drain(name):
    assert SERVICES[name]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}
    assert int(SERVICES[name]["stop_grace_period"].removesuffix("s")) > load_settings({}, {}).settings.shutdown_grace_s


def make_secrets(folder: Path, *arguments: str) -> dict[str, str]:
    subprocess.run(
        ["sh", str(DOCKER / "make-secrets.sh"), *arguments], env={"SECRETS_DIR": str(folder), "PATH": "/usr/bin:/bin"}, check=True
    )
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_secrets_are_made_once_are_all_different_and_are_settings_that_work(tmp_path):
    folder = tmp_path / "secrets"
    first = make_secrets(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    made = [value for value in first.values() if value]
    assert len(made) == len(set(made)) == 5 and all(len(value) == 40 for value in made)
    assert first["database_url"] == "", "SQLite"
    second = make_secrets(folder, "--postgres")
    assert {name: second[name] for name in first if name != "database_url"} == {
        name: first[name] for name in first if name != "database_url"
    }
    assert second["postgres_password"] in second["database_url"]
    assert make_secrets(folder) == second
    variables = {
        name: str(folder / Path(value).name) for name, value in SERVICES["appliance"]["environment"].items() if name.endswith("_FILE")
    }
    settings = load_settings({}, variables).settings
    assert sqlalchemy_url(settings).startswith("postgresql+asyncpg://fairlane:")
    assert settings.metrics_key == first["metrics_key"] and settings.bootstrap_api_key == first["api_key"]


def test_folders_that_docker_made_for_missing_secrets_are_replaced(tmp_path):
    for name in ("api_key", "postgres_password", "database_url"):
        (tmp_path / name).mkdir()
    made = make_secrets(tmp_path, "--postgres")
    assert len(made["postgres_password"]) == 40 and made["postgres_password"] in made["database_url"]


def test_the_project_has_a_name_of_its_own_from_the_first_time_on(tmp_path):
    script = shutil.copy(DOCKER / "make-secrets.sh", tmp_path)
    subprocess.run(["sh", script], check=True)
    assert (tmp_path / ".env").read_text() == "COMPOSE_PROJECT_NAME=fairlane\n"
    (tmp_path / ".env").unlink()
    subprocess.run(["sh", script], check=True)
    assert not (tmp_path / ".env").exists(), "containers and volumes of another name are there already"


def test_a_stream_passes_the_proxy_unbuffered_and_a_client_that_leaves_is_noticed():
    lines = {line.partition("#")[0].strip() for line in (DOCKER / "nginx.conf").read_text().splitlines()}
    assert {"proxy_buffering off;", "proxy_ignore_client_abort off;", "proxy_next_upstream off;"} <= lines


def test_every_file_that_a_service_mounts_is_there():
    for name, service in SERVICES.items():
        for mount in service.get("volumes", ()):
            source = mount.partition(":")[0]
            assert (DOCKER / source).exists() if source.startswith(".") else source in COMPOSE["volumes"], (name, mount)
