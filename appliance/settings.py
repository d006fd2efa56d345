"""Settings of the appliance: one frozen struct, read once. Precedence: flag > `FAIRLANE_*` > file > default.

The struct's fields are the only list of settings: `OPTIONS` turns each into a flag, an environment variable, a key of
the file and a line of docs/settings.md, with the field's docstring as its help.

SettingsError            names the key, the value, where it came from, the bound and what to do
"""

import difflib
import ipaddress
import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from appliance.docstrings import field_docs
from appliance.replicas import Replica, read_replicas
from engine.wire import LANES, EngineConfig

ENV_PREFIX = "FAIRLANE_"
MIN_PASSWORD_CHARS = 12
MAX_PASSWORD_CHARS = 256
MAX_TENANT_WEIGHT = 1_000
CONFIG_ENV = "FAIRLANE_CONFIG"
"""Path of the settings file, as `--config`."""
OTHERS_PREFIXES = ("FAIRLANE_TEST_", "FAIRLANE_CPU_")
"""Variables of the tests and of the native kernels' build: no settings of the appliance."""

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Count = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
Price = Annotated[float, msgspec.Meta(ge=0)]
Ratio = Annotated[float, msgspec.Meta(ge=0, le=1)]


_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
"""RFC 9110, section 5.1."""


class SettingsError(Exception):
    """A setting is impossible; the message says which, where it came from and what to do."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything `fairlane serve` is started with. Derived values are functions beside it."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 listens on all."""
    port: Port = 8000
    """Port to listen on; 0 takes any free one (written to run.json in the data directory)."""
    data_dir: str = "var"
    """Folder of the database, the first key, the model's exported files and run.json. Made when missing."""
    database_url: str = ""
    """SQLAlchemy URL, `sqlite:///path` or `postgresql://user:password@host/name`; empty is SQLite in the data directory. `sqlite:///path?timeout=2`
    waits two seconds, not five, for another program's lock."""
    max_body_bytes: Count = 4 * 1024 * 1024
    """Longest request body; a longer one is refused with 413 before it is read."""
    body_deadline_s: Annotated[float, msgspec.Meta(ge=0.1)] = 30.0
    """Seconds a request's body may take to arrive; then it is answered 408."""
    refusals_per_s: Annotated[float, msgspec.Meta(ge=0)] = 50.0
    """Refusals a second that a tenant gets at once (two seconds' worth of them in a burst; a long body counts as several). Beyond them its
    requests wait at the door, unread. 0: all are answered at once, however many."""
    max_queue_depth: Count = 1024
    """Most requests waiting for a row over all tenants; the next one is answered 503, whatever was predicted."""
    admission: bool = True
    """Refuse at once what is predicted to miss its TTFT target (429 or 503 `predicted_late`), and end what waits too long for it. Off:
    whatever comes is queued and served in its turn."""
    engine_lanes: str = ""
    """Which lanes share an engine process: `fast,slow;batch` is two of them, each with all weights and a KV pool of its own; empty is one
    for all."""
    write_deadline_s: Seconds = 30.0
    """Seconds a client may take nothing before its request is cancelled."""
    max_unacknowledged_tokens: Annotated[int, msgspec.Meta(ge=0)] = 32
    """Tokens of a stream that its reader may not have taken yet; beyond them no more are drawn until it catches up. 0 is no limit."""
    shutdown_grace_s: Seconds = 30.0
    """Seconds that requests in flight get to finish after SIGTERM."""
    metrics_without_key: bool = False
    """Serve /metrics without a key also when bound elsewhere than loopback."""
    metrics_key: str = ""
    """A key for /metrics and /load alone, 16 or more printable characters, beside tenants' keys of scope `metrics`; empty: none."""
    metrics_max_tenants: Count = 100
    """Tenants with metric series of their own, the busiest; the others share the label `other`."""
    tenant_shares: str = ""
    """Weights of tenants in this process, as `acme=3,batch-jobs=0.5`: they win over the database's, for instance on replicas that a
    team paid for."""
    vllm_metric_names: bool = False
    """Show the common series under vLLM's names (`vllm:...`), too, for dashboards and autoscalers made for it."""
    device_hour_price: Price = 0.0
    """What an hour of the device costs, in your currency; metrics then tell the cost of 1,000 tokens."""
    explain_names_tenants: bool = False
    """Name other tenants in explanations that a tenant asks for; without it they read "another tenant". Administrators see names."""
    grafana_url: str = ""
    """Where Grafana is, as browsers reach it (https://grafana.example); the web pages then link to its dashboards. Empty: no links."""
    common_prefixes: str = ""
    """YAML file of system prompts (and the trust group that may share each) computed and pinned before ready."""
    otlp_endpoint: str = ""
    """URL of an OpenTelemetry collector's OTLP/HTTP receiver, as http://collector:4318; traces go to /v1/traces beneath it, metrics to
    /v1/metrics. Empty: nothing is sent."""
    otlp_headers: str = ""
    """Headers for the collector, as `authorization=Bearer abc,x-team=llm`."""
    otlp_sample_ratio: Ratio = 0.01
    """Share of requests whose traces are sent though they were neither slow nor failed; those are sent in any case."""
    otlp_metrics_interval_s: Seconds = 15.0
    """Seconds between two times that metrics are sent to the collector; 0 sends none."""
    prometheus_url: str = ""
    """URL of the Prometheus that the dashboards of /ui ask, as http://prometheus:9090. Empty: they show this process's own last hour."""
    prometheus_headers: str = ""
    """Headers for that Prometheus, as `authorization=Bearer abc,x-scope-orgid=llm`."""
    history_interval_s: Annotated[float, msgspec.Meta(ge=1)] = 15.0
    """Seconds between two samples of our own metrics, of which an hour is kept where `prometheus_url` is empty."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe log line written."""
    log_format: Literal["auto", "json", "console"] = "auto"
    """`auto` is console on a terminal, else JSON, one object a line."""
    log_prompts: bool = False
    """Debugging only: show prompts, which are your tenants' text, in the log line `submitted` of level `debug`. Off: no line holds text."""
    bootstrap_api_key: str = ""
    """First key of tenant `default`: any 16 or more printable characters; empty makes one up at the first start."""
    bootstrap_admin_token: str = ""
    """Bearer token of /api/v1, 16 or more printable characters; empty makes one up at the first start."""
    bootstrap_admin_password: str = ""
    """Password of the first owner, `admin`, 12 or more characters; read while there is no owner, empty shows a one-time setup token."""
    session_ttl_s: Annotated[float, msgspec.Meta(ge=60)] = 12 * 3600.0
    """Seconds after which a browser has to log in again."""
    session_idle_s: Annotated[float, msgspec.Meta(ge=60)] = 1800.0
    """Seconds without a request after which a browser has to log in again."""
    trusted_proxies: str = ""
    """Addresses or networks with commas between, of proxies whose X-Forwarded-For and X-Forwarded-Proto are believed; empty: none."""
    key_pepper: str = ""
    """Secret mixed into the digests of keys; empty makes one up at the first start. Processes on one database share it."""
    engine: EngineConfig = EngineConfig()


# ---- derived values ---------------------------------------------------------------------------------------------


def data_path(settings: Settings) -> Path:
    """The data directory, absolute."""
    return Path(settings.data_dir).expanduser().resolve()


def default_database_path(settings: Settings) -> Path:
    """The SQLite file that is used where `database_url` is empty."""
    return data_path(settings) / "fairlane.db"


def sqlalchemy_url(settings: Settings) -> str:
    """The database's URL with the asynchronous driver named."""
    url = settings.database_url or f"sqlite:///{default_database_path(settings)}"
    for scheme, driver in (("sqlite", "aiosqlite"), ("postgresql", "asyncpg"), ("postgres", "asyncpg")):
        if url.startswith(f"{scheme}://"):
            return f"{'sqlite' if scheme == 'sqlite' else 'postgresql'}+{driver}://{url.removeprefix(f'{scheme}://')}"
    if url.startswith(("sqlite+aiosqlite://", "postgresql+asyncpg://")):
        return url
    raise SettingsError(f"database_url has the scheme {url.split(':', 1)[0]!r}: use sqlite:///path or postgresql://user:password@host/name")


def otlp_headers(settings: Settings) -> dict[str, str]:
    """By name. Raises `SettingsError`."""
    return _headers("otlp_headers", settings.otlp_headers)


def prometheus_headers(settings: Settings) -> dict[str, str]:
    """By name. Raises `SettingsError`."""
    return _headers("prometheus_headers", settings.prometheus_headers)


def _headers(setting: str, text: str) -> dict[str, str]:
    headers: dict[str, str] = {}
    for number, pair in enumerate(filter(None, map(str.strip, text.split(","))), 1):
        name, equals, value = pair.partition("=")
        if not (equals and _HEADER_NAME.fullmatch(name.strip()) and value.isascii() and value.isprintable()):
            raise SettingsError(f"header {number} of {setting} (hidden) is not written name=value: change {ENV_PREFIX}{setting.upper()}")
        headers[name.strip()] = value.strip()
    return headers


def tenant_shares(settings: Settings) -> dict[str, float]:
    """Weight by tenant. Raises `SettingsError`."""
    shares: dict[str, float] = {}
    for pair in filter(None, map(str.strip, settings.tenant_shares.split(","))):
        tenant, _, weight = pair.partition("=")
        try:
            share = float(weight)
        except ValueError:
            share = 0.0
        if not tenant.strip() or tenant.strip() in shares or not 0 < share <= MAX_TENANT_WEIGHT:
            raise SettingsError(
                f"tenant_shares={pair!r} must be a tenant and its weight, above 0 and at most {MAX_TENANT_WEIGHT}, each tenant once,"
                f" as 'acme=3': change --tenant-shares or {ENV_PREFIX}TENANT_SHARES"
            )
        shares[tenant.strip()] = share
    return shares


def replicas(settings: Settings) -> tuple[Replica, ...]:
    """The engine replicas and their lanes. Raises `SettingsError`."""
    try:
        return read_replicas(settings.engine_lanes)
    except ValueError as error:
        raise SettingsError(
            f"engine_lanes={settings.engine_lanes!r}: {error}; name each of fast, slow and batch once, with commas between those that share"
            f" an engine and semicolons between engines, as in 'fast,slow;batch': change --engine-lanes or {ENV_PREFIX}ENGINE_LANES"
        ) from error


def engine_config(settings: Settings) -> EngineConfig:
    """What the engine is started with: the settings' part, and the two fields the appliance decides itself."""
    waits = {} if settings.admission else {f"{lane}_max_wait_targets": 0.0 for lane in LANES}
    return msgspec.structs.replace(
        settings.engine,
        **waits,
        export_dir=settings.engine.export_dir or str(data_path(settings) / "model"),
        await_common_prefixes=bool(settings.common_prefixes),
    )


# ---- the table --------------------------------------------------------------------------------------------------

SECRETS = frozenset(
    {
        "otlp_headers",
        "prometheus_headers",
        "metrics_key",
        "bootstrap_api_key",
        "bootstrap_admin_token",
        "bootstrap_admin_password",
        "key_pepper",
    }
)
"""No flag (`ps` shows flags); `FAIRLANE_X_FILE` reads the value from a file."""
FILE_VARIANTS = SECRETS | {"database_url"}
DECIDED_BY_US = frozenset({"export_dir", "await_common_prefixes"})
"""Fields of `EngineConfig` that are no settings: `engine_config` fills them."""


@dataclass(frozen=True)
class Option:
    """One setting. `key` is its path in the file: `port`, `engine.max_num_seqs`."""

    key: str
    type: Any
    default: Any
    help: str

    @property
    def name(self) -> str:
        return self.key.rpartition(".")[2]

    @property
    def env(self) -> str:
        return ENV_PREFIX + self.name.upper()

    @property
    def flag(self) -> str | None:
        return None if self.name in SECRETS else "--" + self.name.replace("_", "-")

    @cached_property
    def plain_type(self) -> Any:
        """The type without its bounds."""
        return get_args(self.type)[0] if get_origin(self.type) is Annotated else self.type

    @property
    def choices(self) -> tuple[str, ...]:
        return get_args(self.plain_type) if get_origin(self.plain_type) is Literal else ()

    @property
    def is_list(self) -> bool:
        return get_origin(self.plain_type) is tuple

    def bound(self) -> str:
        """What is allowed, in words."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.is_list:
            return "whole numbers with commas between"
        kind = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[self.plain_type]
        meta = get_args(self.type)[1] if get_origin(self.type) is Annotated else msgspec.Meta()
        if meta.ge is None:
            return kind
        return f"{kind}, at least {meta.ge}" if meta.le is None else f"{kind} from {meta.ge} to {meta.le}"


def _options(struct: type[msgspec.Struct], prefix: str) -> list[Option]:
    docs, hints = field_docs(struct), get_type_hints(struct, include_extras=True)
    return [
        Option(prefix + field.name, hints[field.name], field.default, docs.get(field.name, ""))
        for field in msgspec.structs.fields(struct)
        if field.name not in DECIDED_BY_US and field.name != "engine"
    ]


OPTIONS: tuple[Option, ...] = (*_options(Settings, ""), *_options(EngineConfig, "engine."))


# ---- reading ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Loaded:
    """The settings, where each one that is not a default came from (by key), and what to warn of."""

    settings: Settings
    sources: Mapping[str, str]
    warnings: tuple[str, ...]


def load_settings(flags: Mapping[str, object], environ: Mapping[str, str], config_file: str | None = None) -> Loaded:
    """Settings from the flags given (by field name; None is "not given"), the environment and a TOML or YAML file.

    Raises `SettingsError`. Unknown keys of the file are errors; unknown `FAIRLANE_*` variables are warnings, because
    an environment is shared (Kubernetes writes into it).
    """
    config_file = config_file or environ.get(CONFIG_ENV)
    in_file = _read_file(Path(config_file)) if config_file else {}
    sources: dict[str, str] = {}
    values: dict[str, Any] = {}
    for option in OPTIONS:
        flag = flags.get(option.name)
        env_source, env_value = _from_env(option, environ)
        if flag is not None:
            sources[option.key], values[option.key] = f"flag {option.flag}", _convert(option, flag, f"flag {option.flag}")
        elif env_source is not None:
            sources[option.key], values[option.key] = env_source, _convert(option, env_value, env_source)
        elif option.key in in_file:
            sources[option.key], values[option.key] = f"{config_file}", _convert(option, in_file[option.key], f"{config_file}")
    engine = EngineConfig(**{key.removeprefix("engine."): value for key, value in values.items() if key.startswith("engine.")})
    settings = Settings(engine=engine, **{key: value for key, value in values.items() if not key.startswith("engine.")})
    _check_secrets(settings)
    _check_proxies(settings)
    _check_urls(settings)
    replicas(settings)
    tenant_shares(settings)
    sqlalchemy_url(settings)
    return Loaded(settings, sources, _unknown_variables(environ))


def _from_env(option: Option, environ: Mapping[str, str]) -> tuple[str | None, str]:
    """The variable that sets an option, or the file that its `_FILE` twin names; None where neither is set."""
    file_env = option.env + "_FILE"
    path = environ.get(file_env) if option.name in FILE_VARIANTS else None
    if path and environ.get(option.env):
        raise SettingsError(f"{option.env} and {file_env} are both set: keep one of them")
    if path:
        try:
            return file_env, Path(path).read_text().strip()
        except OSError as error:
            raise SettingsError(f"{file_env}={path!r} can not be read ({error.strerror}): name a readable file") from error
    value = environ.get(option.env)
    return (option.env, value) if value is not None and value != "" else (None, "")


def _convert(option: Option, value: object, source: str) -> Any:
    """A value of the option's type. Text is converted (numbers, true/false, lists with commas)."""
    raw = [part.strip() for part in value.split(",") if part.strip()] if option.is_list and isinstance(value, str) else value
    try:
        return msgspec.convert(raw, option.type, strict=False)
    except msgspec.ValidationError as error:
        shown = "(hidden)" if option.name in FILE_VARIANTS else repr(value)
        remedy = " or ".join(filter(None, (option.flag, option.env)))
        if option.name == "port" and "://" in str(value):
            remedy += "; Kubernetes writes this variable for a Service named fairlane: set enableServiceLinks: false"
        raise SettingsError(f"{option.key}={shown} (from {source}) must be {option.bound()}: change {remedy}") from error


def _read_file(path: Path) -> dict[str, Any]:
    """Values of a settings file by key; the table `engine` is flattened."""
    decode: Callable[[bytes], Any] = msgspec.toml.decode if path.suffix == ".toml" else msgspec.yaml.decode
    try:
        content = decode(path.read_bytes()) or {}
    except OSError as error:
        raise SettingsError(f"settings file {str(path)!r} can not be read ({error.strerror})") from error
    except msgspec.DecodeError as error:
        raise SettingsError(f"settings file {str(path)!r} is not valid {path.suffix.lstrip('.') or 'YAML'}: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("engine", {}), dict):
        raise SettingsError(f"settings file {str(path)!r} must hold `key: value` pairs, those of the engine under `engine:`")
    engine = content.pop("engine", {})
    flat = {str(key): value for key, value in content.items()} | {f"engine.{key}": value for key, value in engine.items()}
    known = {option.key for option in OPTIONS}
    for key in flat:
        if key not in known:
            raise SettingsError(f"settings file {str(path)!r} has an unknown key {key!r}{_nearest(key, known)}")
    return flat


def _check_secrets(settings: Settings) -> None:
    bearers: dict[str, str] = {name: getattr(settings, name) for name in ("bootstrap_api_key", "bootstrap_admin_token", "metrics_key")}
    for name, value in bearers.items():
        if value and (len(value) < 16 or not value.isascii() or not value.isprintable() or " " in value):
            raise SettingsError(
                f"{name}=(hidden, {len(value)} characters) must be 16 or more printable ASCII characters without spaces: "
                f"set {ENV_PREFIX}{name.upper()} to a longer random value, or leave it out"
                f"{'' if name == 'metrics_key' else ' to have one made'}"
            )
    password = settings.bootstrap_admin_password
    if password and not MIN_PASSWORD_CHARS <= len(password) <= MAX_PASSWORD_CHARS:
        raise SettingsError(
            f"bootstrap_admin_password=(hidden, {len(password)} characters) must have {MIN_PASSWORD_CHARS} to {MAX_PASSWORD_CHARS}: "
            f"set {ENV_PREFIX}BOOTSTRAP_ADMIN_PASSWORD to another one, or leave it out and make the first owner with the setup token"
        )
    for first, second in itertools.combinations(bearers, 2):
        if bearers[first] and bearers[first] == bearers[second]:
            raise SettingsError(f"{first} and {second} are the same: no key may do both, give them different values")


def _check_proxies(settings: Settings) -> None:
    for proxy in filter(None, map(str.strip, settings.trusted_proxies.split(","))):
        try:
            ipaddress.ip_network(proxy)
        except ValueError as error:
            raise SettingsError(
                f"trusted_proxies={proxy!r} is no address or network (as 10.0.0.7 or 10.0.0.0/8): change --trusted-proxies or "
                f"{ENV_PREFIX}TRUSTED_PROXIES"
            ) from error


def _check_urls(settings: Settings) -> None:
    for name, example in (
        ("otlp_endpoint", "http://collector:4318"),
        ("prometheus_url", "http://prometheus:9090"),
        ("grafana_url", "http://grafana:3000"),
    ):
        url: str = getattr(settings, name)
        if url and (not url.startswith(("http://", "https://")) or not url.isascii() or not url.isprintable() or " " in url):
            raise SettingsError(f"{name}={url!r} is no URL (as {example}): change --{name.replace('_', '-')} or {ENV_PREFIX}{name.upper()}")
    if "@" in settings.prometheus_url:
        raise SettingsError(
            f"prometheus_url holds a password: leave it out and set {ENV_PREFIX}PROMETHEUS_HEADERS to authorization=Basic ..."
        )
    otlp_headers(settings)
    prometheus_headers(settings)


def _unknown_variables(environ: Mapping[str, str]) -> tuple[str, ...]:
    known = {option.env for option in OPTIONS} | {CONFIG_ENV} | {f"{ENV_PREFIX}{name.upper()}_FILE" for name in FILE_VARIANTS}
    return tuple(
        f"{name} is set but no setting is called so{_nearest(name, known)}"
        for name in sorted(environ)
        if name.startswith(ENV_PREFIX) and not name.startswith(OTHERS_PREFIXES) and name not in known
    )


def _nearest(name: str, known: set[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f": did you mean {near[0]!r}?" if near else "; `fairlane settings` lists all"
