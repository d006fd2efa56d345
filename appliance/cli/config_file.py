"""The configuration document as YAML: read with the line of each value, so that a mistake is shown where it stands."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import yaml

from appliance.choices import describe
from appliance.domain.configuration.decisions import TENANT_FIELDS, Configuration, TenantSpec, configuration_faults, unknown_fields
from appliance.errors import ApplianceError, Fault, Invalid

HEAD = """# Tiers and tenants of Fairlane, by `fairlane config export`. What an object leaves out has its default; keys are not in here.
# `fairlane config plan FILE` shows what applying this would change.
"""

type Lines = dict[tuple[str, ...], int]
"""Line of each key by its path, counted from 1."""


STDIN = Path("-")


class ConfigFileError(ApplianceError):
    """The document can not be used; the message has a line for each fault, which begins with file and line."""


class ConfigFile:
    """A document that was read, and where its values stand."""

    def __init__(self, name: str, lines: Lines, configuration: Configuration) -> None:
        self._name = name
        self._lines = lines
        self.configuration = configuration

    def located(self, error: Invalid) -> ConfigFileError:
        """All that is wrong, each with the line of the value that it names, or of the nearest one around it."""
        return _located(self._name, self._lines, error.faults or (Fault(error.param or "", error.message),))


def read_config_file(path: Path) -> ConfigFile:
    """Read and check a document; `-` is standard input. Raises `ConfigFileError` with all that is wrong."""
    name = "<stdin>" if path == STDIN else str(path)
    try:
        text = sys.stdin.read() if path == STDIN else path.read_text()
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        content = yaml.safe_load(text)
    except OSError as error:
        raise ConfigFileError(f"{name} can not be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigFileError(f"{name} is no text in UTF-8") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise ConfigFileError(
            f"{name}:{mark.line + 1 if mark else 1}: no valid YAML: {getattr(error, 'problem', None) or error}"
        ) from error
    lines: Lines = {}
    faults: list[Fault] = []
    _note_lines(root, (), lines, faults)
    configuration = _configuration(content, faults)
    faults += configuration_faults(configuration)
    if faults:
        raise _located(name, lines, faults)
    return ConfigFile(name, lines, configuration)


def config_yaml(configuration: Configuration) -> str:
    """A document as text; reading it gives the same document."""
    return HEAD + yaml.safe_dump(
        msgspec.to_builtins(configuration), sort_keys=False, allow_unicode=True, default_flow_style=None, width=140
    )


def _note_lines(node: yaml.Node | None, path: tuple[str, ...], lines: Lines, faults: list[Fault]) -> None:
    """Where each key stands; one that comes twice is a fault: YAML would let the last one win in silence."""
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        inner = (*path, str(key.value))
        first, lines[inner] = lines.get(inner), key.start_mark.line + 1
        if first is not None:
            faults.append(Fault(".".join(inner), f"{key.value!r} stands here twice, first in line {first}"))
        _note_lines(value, inner, lines, faults)


def _configuration(content: Any, faults: list[Fault]) -> Configuration:
    """What of a document can be read; the rest becomes faults."""
    parts = _table(content, "", faults)
    faults += unknown_fields(parts, Configuration.__struct_fields__, "")
    tiers = {name: _table(fields, f"tiers.{name}", faults) for name, fields in _table(parts.get("tiers"), "tiers", faults).items()}
    tenants: dict[str, TenantSpec] = {}
    for slug, fields in _table(parts.get("tenants"), "tenants", faults).items():
        tenant = _tenant(f"tenants.{slug}", _table(fields, f"tenants.{slug}", faults), faults)
        if tenant is not None:
            tenants[slug] = tenant
    return Configuration(tiers=tiers if "tiers" in parts else None, tenants=tenants if "tenants" in parts else None)


def _tenant(where: str, fields: dict[str, Any], faults: list[Fault]) -> TenantSpec | None:
    """None where a field is of the wrong type."""
    faults += unknown_fields(fields, TENANT_FIELDS, where)
    known = {name: value for name, value in fields.items() if name in TENANT_FIELDS}
    wrong = [fault for name, value in known.items() for fault in _type_faults(where, {name: value})]
    faults += wrong
    return None if wrong else msgspec.convert(known, TenantSpec)


def _type_faults(where: str, field: dict[str, Any]) -> list[Fault]:
    try:
        msgspec.convert(field, TenantSpec)
    except msgspec.ValidationError as error:
        reason, name = describe(str(error), TenantSpec)
        return [Fault(f"{where}.{name}".rstrip("."), f"{reason[:1].lower()}{reason[1:]}")]
    return []


def _table(value: Any, where: str, faults: list[Fault]) -> dict[str, Any]:
    """A mapping with texts as keys; nothing is an empty one, and so is what is none, which is a fault."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        faults.append(Fault(where, f"{where or 'the document'} must hold `key: value` pairs"))
        return {}
    faults += [Fault(f"{where}.{key}", f"{key!r} is no text: write it in quotes") for key in value if not isinstance(key, str)]
    return {key: inner for key, inner in value.items() if isinstance(key, str)}


def _located(name: str, lines: Lines, faults: Iterable[Fault]) -> ConfigFileError:
    """The faults in the order of their lines, one a line."""
    told: list[tuple[int, str]] = []
    for fault in faults:
        where = tuple(fault.param.split("."))
        while where and where not in lines:
            where = where[:-1]
        named = f" ({fault.param})" if fault.param and fault.param.split(".")[-1] not in fault.message else ""
        told.append((lines.get(where, 1), f"{fault.message}{named}"))
    return ConfigFileError("\n".join(f"{name}:{line}: {message}" for line, message in sorted(told)))
