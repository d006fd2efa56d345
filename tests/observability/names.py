"""Names that a text tells an operator to use, and those that nothing in the appliance has."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import click
from litestar import Controller
from litestar.handlers import HTTPRouteHandler

from appliance.asgi import serve  # every controller is imported with it
from appliance.cli.main import cli
from appliance.domain.slas.decisions import SLA_FIELDS
from appliance.domain.tenants.routes import ADMIN_PATH
from appliance.settings import CONFIG_ENV, ENV_PREFIX, FILE_VARIANTS, OPTIONS
from appliance.telemetry import families
from tests.observability.promql import BUILT_IN, FAMILY_OF
from tests.observability.rules import ALERTS, RECORDS, ROOT, rules_of

assert serve
CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
COMMAND = re.compile(r"\bfairlane((?: [a-z][a-z-]*)+)")
FILE = re.compile(r"(?<![\w/.$-])(?:alerts|appliance|benchmarks|dashboards|docker|docs|engine|tests|tools)/[\w./-]*\w/?")
ROUTE = re.compile(r"(?:\b(GET|POST|PUT|PATCH|DELETE) )?(?<![\w.}\-/:$])(/(?:v1|api|debug|load|livez|readyz|health|metrics)\b[\w/{}\-]*)")
WORD = re.compile(r"(?<![\w/.:{$-])[a-z][a-z0-9]*(?:_[a-z0-9]+)+\b(?![/:])")
SERIES = re.compile(r"(?<!/)\bfairlane[_:]\w[\w:]*")
PARAMETER = re.compile(r"{[^}]*}")


@dataclass(frozen=True, slots=True)
class Kind:
    """Names of a kind: how they are found in a text, and all there are."""

    pattern: re.Pattern[str]
    known: frozenset[str]


def misnamed(text: str) -> list[str]:
    """Flags, variables, series, alerts, make targets, routes, files and commands that a text names and nothing has."""
    code = " ".join(CODE.findall(text))
    return [
        *(name for kind in _kinds() for name in kind.pattern.findall(text) if name not in kind.known),
        *(f"{method} {path}".strip() for method, path in ROUTE.findall(text) if not _is_route(method, path)),
        *(path for path in FILE.findall(code) if not (ROOT / path).exists()),
        *(f"fairlane{words}" for words in COMMAND.findall(code) if not _is_command(words.split())),
    ]


def unknown_words(text: str) -> list[str]:
    """Words with an underscore that are no field of a tier, setting, label or its value, and no line of the log."""
    return [word for word in WORD.findall(text) if word not in _words() and not SERIES.fullmatch(word)]


@cache
def _kinds() -> tuple[Kind, ...]:
    options = [option for command in _commands(cli) for option in command.params if isinstance(option, click.Option)]
    flags = {flag for option in options for flag in (*option.opts, *option.secondary_opts)} | {"--rm"}  # the last is docker's
    variables = {option.env for option in OPTIONS} | {CONFIG_ENV} | {f"{ENV_PREFIX}{name.upper()}_FILE" for name in FILE_VARIANTS}
    series = {*FAMILY_OF, *(family.full_name for family in families.FAMILIES), *(rule.name for rule in rules_of(RECORDS))}
    return (
        Kind(re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*"), frozenset(flags)),
        Kind(re.compile(r"\bFAIRLANE_[A-Z0-9_]+"), frozenset(variables)),
        Kind(SERIES, frozenset(series)),
        Kind(re.compile(r"\bFairlane[A-Z]\w+"), frozenset(rule.name for rule in rules_of(ALERTS))),
        Kind(re.compile(r"`make ([a-z-]+)"), frozenset(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))),
    )


def _commands(command: click.Command) -> Iterator[click.Command]:
    yield command
    for inner in (command.commands if isinstance(command, click.Group) else {}).values():
        yield from _commands(inner)


def _is_command(words: list[str]) -> bool:
    """Words after a command that has no commands of its own are its arguments."""
    command: click.Command = cli
    for word in words:
        if not isinstance(command, click.Group):
            break
        if word not in command.commands:
            return False
        command = command.commands[word]
    return True


def _is_route(method: str, path: str) -> bool:
    """Also where a parameter is given, as in `/debug/queue`, or where others begin with it, as `/debug`."""
    wanted = PARAMETER.sub("x", path)
    inner = wanted.removeprefix(ADMIN_PATH) or "/"
    paths = {known for verb, known in _routes() if method in ("", verb)}
    patterns = {PARAMETER.sub(r"[^/]+", known) for known in paths}
    return any(re.fullmatch(pattern, each) for pattern in patterns for each in (wanted, inner)) or any(
        known.startswith(f"{wanted}/") for known in paths
    )


@cache
def _routes() -> frozenset[tuple[str, str]]:
    """Method and path of every handler but the web pages'; those of the admin API without its prefix."""
    return frozenset(
        (str(method), f"{vars(controller).get('path', '')}{path}".rstrip("/") or "/")
        for controller in _subclasses(Controller)
        if not controller.__module__.startswith("appliance.ui")
        for handler in vars(controller).values()
        if isinstance(handler, HTTPRouteHandler)
        for path in handler.paths
        for method in handler.http_methods
    )


def _subclasses(of: type[Controller]) -> Iterator[type[Controller]]:
    for each in of.__subclasses__():
        yield each
        yield from _subclasses(each)


@cache
def _words() -> frozenset[str]:
    closed = {word for name, values in vars(families).items() if name.isupper() and isinstance(values, tuple) for word in values}
    labels = {label for family in families.FAMILIES for label in family.labels}
    return frozenset({*SLA_FIELDS, *(option.name for option in OPTIONS), *closed, *labels, *_log_lines(), *BUILT_IN, "service_tier"})


def _log_lines() -> Iterator[str]:
    """First argument of every call of a logger."""
    for path in (ROOT / "appliance").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="log")), args=[ast.Constant(value=str(line)), *_]):
                    yield line
                case _:
                    pass
