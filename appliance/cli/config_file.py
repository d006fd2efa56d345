"""The configuration document as YAML: read with the line of each value, so that a mistake is shown where it stands."""

from pathlib import Path
from typing import Any

import msgspec
import yaml

from appliance.domain.configuration.decisions import TENANT_FIELDS, Configuration, TenantSpec, check_configuration, refuse_unknown
from appliance.errors import ApplianceError, Invalid

HEAD = """# Tiers and tenants of Fairlane, by `fairlane config export`. What an object leaves out has its default; keys are not in here.
# `fairlane config plan FILE` shows what applying this would change.
"""

type Lines = dict[tuple[str, ...], int]
"""Line of each key by its path, counted from 1."""


class ConfigFileError(ApplianceError):
    """The document can not be used; the message begins with file and line."""


class ConfigFile:
    """A document that was read, and where its values stand."""

    def __init__(self, path: Path, lines: Lines, configuration: Configuration) -> None:
        self._path = path
        self._lines = lines
        self.configuration = configuration

    def located(self, error: Invalid) -> ConfigFileError:
        """The error with the line of the value that it names, or of the nearest one around it."""
        return _located(self._path, self._lines, error)


def read_config_file(path: Path) -> ConfigFile:
    """Read and check a document. Raises `ConfigFileError`."""
    try:
        text = path.read_text()
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        content = yaml.safe_load(text)
    except OSError as error:
        raise ConfigFileError(f"{path} can not be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigFileError(f"{path} is no text in UTF-8") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise ConfigFileError(
            f"{path}:{mark.line + 1 if mark else 1}: no valid YAML: {getattr(error, 'problem', None) or error}"
        ) from error
    lines: Lines = {}
    try:
        _note_lines(root, (), lines)
        configuration = _configuration(content)
        check_configuration(configuration)
    except Invalid as error:
        raise _located(path, lines, error) from error
    return ConfigFile(path, lines, configuration)


def config_yaml(configuration: Configuration) -> str:
    """A document as text; reading it gives the same document."""
    return HEAD + yaml.safe_dump(
        msgspec.to_builtins(configuration), sort_keys=False, allow_unicode=True, default_flow_style=None, width=140
    )


def _note_lines(node: yaml.Node | None, path: tuple[str, ...], lines: Lines) -> None:
    """Where each key stands. Raises `Invalid` at a key that comes twice: YAML would let the last one win in silence."""
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        inner = (*path, str(key.value))
        first, lines[inner] = lines.get(inner), key.start_mark.line + 1
        if first is not None:
            raise Invalid(f"{key.value!r} stands here twice, first in line {first}", param=".".join(inner))
        _note_lines(value, inner, lines)


def _configuration(content: Any) -> Configuration:
    parts = _table(content, "the document")
    refuse_unknown(parts, Configuration.__struct_fields__, "")
    tiers = {name: _table(fields, f"tiers.{name}") for name, fields in _table(parts.get("tiers"), "tiers").items()}
    tenants = {slug: _tenant(slug, _table(fields, f"tenants.{slug}")) for slug, fields in _table(parts.get("tenants"), "tenants").items()}
    return Configuration(tiers=tiers if "tiers" in parts else None, tenants=tenants if "tenants" in parts else None)


def _tenant(slug: str, fields: dict[str, Any]) -> TenantSpec:
    where = f"tenants.{slug}"
    refuse_unknown(fields, TENANT_FIELDS, where)
    try:
        return msgspec.convert(fields, TenantSpec)
    except msgspec.ValidationError as error:
        reason, _, field = str(error).partition(" - at `$.")
        raise Invalid(f"{reason[:1].lower()}{reason[1:]}", param=f"{where}.{field.rstrip('`')}" if field else where) from error


def _table(value: Any, where: str) -> dict[str, Any]:
    """A mapping with texts as keys; nothing is an empty one. Raises `Invalid`."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Invalid(f"{where} must hold `key: value` pairs", param=where)
    for key in value:
        if not isinstance(key, str):
            raise Invalid(f"{key!r} is no text: write it in quotes", param=f"{where}.{key}")
    return value


def _located(path: Path, lines: Lines, error: Invalid) -> ConfigFileError:
    where = tuple((error.param or "").split("."))
    while where and where not in lines:
        where = where[:-1]
    named = f" ({error.param})" if error.param and error.param.split(".")[-1] not in error.message else ""
    return ConfigFileError(f"{path}:{lines.get(where, 1)}: {error.message}{named}")
