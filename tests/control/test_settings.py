from pathlib import Path

import pytest

from appliance.cli.settings_table import settings_markdown
from appliance.settings import OPTIONS, Settings, SettingsError, engine_config, load_settings, sqlalchemy_url
from engine.wire import EngineConfig

REPOSITORY = Path(__file__).resolve().parents[2]


def test_a_flag_wins_over_the_environment_and_that_over_the_file_and_that_over_the_default(tmp_path):
    file = tmp_path / "fairlane.toml"
    file.write_text('port = 1\nhost = "file"\nlog_level = "error"\n[engine]\nmax_num_seqs = 7\n')
    loaded = load_settings({"port": "3", "host": None}, {"FAIRLANE_PORT": "2", "FAIRLANE_HOST": "environment"}, str(file))
    assert (loaded.settings.port, loaded.settings.host, loaded.settings.log_level) == (3, "environment", "error")
    assert loaded.settings.engine == EngineConfig(max_num_seqs=7)
    assert loaded.settings.max_queue_depth == Settings().max_queue_depth
    assert loaded.sources == {
        "port": "flag --port", "host": "FAIRLANE_HOST", "log_level": str(file), "engine.max_num_seqs": str(file)
    }  # fmt: skip


def test_a_yaml_file_is_read_and_found_through_the_environment(tmp_path):
    file = tmp_path / "fairlane.yaml"
    file.write_text("port: 9\nengine:\n  decode_buckets: [2, 8]\n  enable_prefix_caching: false\n")
    settings = load_settings({}, {"FAIRLANE_CONFIG": str(file)}).settings
    assert settings.port == 9
    assert settings.engine.decode_buckets == (2, 8)
    assert settings.engine.enable_prefix_caching is False


def test_lists_and_switches_are_read_from_the_environment():
    settings = load_settings({}, {"FAIRLANE_DECODE_BUCKETS": "2, 4,8", "FAIRLANE_ASYNC_SCHEDULING": "false"}).settings
    assert settings.engine.decode_buckets == (2, 4, 8)
    assert settings.engine.async_scheduling is False


@pytest.mark.parametrize(
    ("environ", "parts"),
    [
        ({"FAIRLANE_PORT": "70000"}, ("port='70000'", "FAIRLANE_PORT", "0 to 65535", "--port")),
        ({"FAIRLANE_PORT": "tcp://10.0.0.1:80"}, ("Kubernetes", "enableServiceLinks")),
        ({"FAIRLANE_LOG_LEVEL": "loud"}, ("log_level='loud'", "debug, info, warning, error")),
        ({"FAIRLANE_MAX_NUM_SEQS": "many"}, ("engine.max_num_seqs='many'", "a whole number", "--max-num-seqs")),
        ({"FAIRLANE_MAX_QUEUE_DEPTH": "0"}, ("max_queue_depth='0'", "at least 1")),
        ({"FAIRLANE_DATABASE_URL": "mysql://x"}, ("'mysql'", "sqlite:///path")),
        ({"FAIRLANE_BOOTSTRAP_API_KEY": "short"}, ("bootstrap_api_key", "16 or more", "FAIRLANE_BOOTSTRAP_API_KEY")),
        ({"FAIRLANE_BOOTSTRAP_API_KEY": "s" * 16, "FAIRLANE_BOOTSTRAP_ADMIN_TOKEN": "s" * 16}, ("are the same",)),
        ({"FAIRLANE_METRICS_KEY": "s" * 16, "FAIRLANE_BOOTSTRAP_API_KEY": "s" * 16}, ("bootstrap_api_key and metrics_key are the same",)),
        ({"FAIRLANE_METRICS_KEY": "short"}, ("metrics_key=(hidden, 5 characters)", "16 or more")),
        ({"FAIRLANE_TENANT_SHARES": "acme=3,acme=4"}, ("tenant_shares='acme=4'", "each tenant once", "FAIRLANE_TENANT_SHARES")),
        ({"FAIRLANE_TENANT_SHARES": "acme=nan"}, ("above 0 and at most 1000",)),
        ({"FAIRLANE_TENANT_SHARES": "acme"}, ("as 'acme=3'",)),
        ({"FAIRLANE_BOOTSTRAP_ADMIN_PASSWORD": "short"}, ("12 to 256", "FAIRLANE_BOOTSTRAP_ADMIN_PASSWORD", "setup token")),
        ({"FAIRLANE_TRUSTED_PROXIES": "10.0.0.1, proxy.example"}, ("trusted_proxies='proxy.example'", "10.0.0.0/8", "--trusted-proxies")),
        ({"FAIRLANE_TRUSTED_PROXIES": "*"}, ("trusted_proxies='*'",)),
        ({"FAIRLANE_SESSION_TTL_S": "5"}, ("session_ttl_s='5'", "at least 60")),
    ],
)
def test_an_impossible_value_is_refused_with_key_value_bound_and_remedy(environ, parts):
    with pytest.raises(SettingsError) as refused:
        load_settings({}, environ)
    assert all(part in str(refused.value) for part in parts), refused.value


def test_a_secret_is_never_in_the_message():
    with pytest.raises(SettingsError) as refused:
        load_settings({}, {"FAIRLANE_BOOTSTRAP_API_KEY": "tell nobody of me"})
    assert "nobody" not in str(refused.value)


def test_a_secret_is_read_from_the_file_its_variable_names(tmp_path):
    file = tmp_path / "secret"
    file.write_text("a-secret-with-a-newline\n")
    assert load_settings({}, {"FAIRLANE_KEY_PEPPER_FILE": str(file)}).settings.key_pepper == "a-secret-with-a-newline"
    with pytest.raises(SettingsError, match="both set"):
        load_settings({}, {"FAIRLANE_KEY_PEPPER_FILE": str(file), "FAIRLANE_KEY_PEPPER": "x"})
    with pytest.raises(SettingsError, match="can not be read"):
        load_settings({}, {"FAIRLANE_KEY_PEPPER_FILE": str(tmp_path / "missing")})


def test_an_unknown_variable_is_reported_with_the_nearest_name():
    warnings = load_settings({}, {"FAIRLANE_MAX_NUM_SEQ": "3", "FAIRLANE_TEST_POSTGRES_URL": "x", "OTHER": "y"}).warnings
    assert len(warnings) == 1
    assert "FAIRLANE_MAX_NUM_SEQS" in warnings[0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("prot: 1", "unknown key 'prot': did you mean 'port'"),
        ("engine: 3", "must hold"),
        ("port: [", "not valid"),
        ("engine: {max_num_seq: 2}", "did you mean 'engine.max_num_seqs'"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path, content, message):
    file = tmp_path / "settings.yaml"
    file.write_text(content)
    with pytest.raises(SettingsError, match=message):
        load_settings({}, {}, str(file))


def test_every_setting_has_help_and_a_name_of_its_own():
    assert [option.key for option in OPTIONS if not option.help] == []
    names = [option.name for option in OPTIONS]
    assert len(names) == len(set(names))


def test_every_setting_takes_its_own_default_back():
    for option in OPTIONS:
        text = ",".join(map(str, option.default)) if option.is_list else str(option.default).lower()
        settings = load_settings({}, {option.env: text} if text else {}).settings
        holder = settings.engine if option.key.startswith("engine.") else settings
        assert getattr(holder, option.name) == option.default


def test_the_engine_waits_for_common_prefixes_only_where_a_file_names_some(tmp_path):
    assert engine_config(Settings(data_dir=str(tmp_path))).await_common_prefixes is False
    config = engine_config(Settings(data_dir=str(tmp_path), common_prefixes="prefixes.yaml"))
    assert config.await_common_prefixes is True
    assert config.export_dir == str(tmp_path / "model")


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("sqlite:////srv/a.db", "sqlite+aiosqlite:////srv/a.db"),
        ("postgresql://u:p@h/n", "postgresql+asyncpg://u:p@h/n"),
        ("postgres://u:p@h/n", "postgresql+asyncpg://u:p@h/n"),
        ("postgresql+asyncpg://h/n", "postgresql+asyncpg://h/n"),
    ],
)
def test_a_database_url_names_the_driver(given, taken):
    assert sqlalchemy_url(Settings(database_url=given)) == taken


def test_the_settings_page_is_what_the_table_makes():
    assert (REPOSITORY / "docs" / "settings.md").read_text() == settings_markdown(), "run: fairlane settings --markdown > docs/settings.md"
