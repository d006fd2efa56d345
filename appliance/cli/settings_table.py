"""The table of settings as command-line flags, as a listing, and as docs/settings.md: all from `settings.OPTIONS`."""

from collections.abc import Callable
from typing import Any

import click

from appliance.settings import FILE_VARIANTS, OPTIONS, Loaded, Option

DOCUMENT_HEAD = """# Settings

Made by `fairlane settings --markdown`; do not edit (a test compares). A flag wins over the environment variable, that over the file
(`--config` or `FAIRLANE_CONFIG`, TOML or YAML), that over the default. In the file, the engine's settings stand under `engine:`.
Secrets have no flag; for them, and for the database's URL, `FAIRLANE_X_FILE` names a file to read the value from.
"""


def settings_flags[**P, R](command: Callable[P, R]) -> Callable[P, R]:
    """Add the flag of every setting that has one; the command gets them by field name, None where not given."""
    for option in reversed(OPTIONS):
        if option.flag is not None:
            command = click.option(*_declaration(option, option.flag), **_attributes(option))(command)
    return command


def _declaration(option: Option, flag: str) -> tuple[str, ...]:
    is_switch = option.plain_type is bool
    return (f"{flag}/--no-{flag.removeprefix('--')}" if is_switch else flag, option.name)


def _attributes(option: Option) -> dict[str, Any]:
    shown = f"{option.help} [{option.env}; default: {default_text(option)}]"
    if option.plain_type is bool:
        return {"default": None, "help": shown}
    kind = {int: "N", float: "X"}.get(option.plain_type, "N,N" if option.is_list else "TEXT")
    return {"default": None, "help": shown, "metavar": f"[{'|'.join(option.choices)}]" if option.choices else kind}


def default_text(option: Option) -> str:
    """A default as people write it."""
    if option.plain_type is bool:
        return "on" if option.default else "off"
    return "empty" if option.default in ("", ()) else str(option.default)


def settings_rows(loaded: Loaded) -> list[tuple[str, str, str]]:
    """Every setting with its value and where it came from; secrets are not shown."""
    rows: list[tuple[str, str, str]] = []
    for option in OPTIONS:
        holder = loaded.settings.engine if option.key.startswith("engine.") else loaded.settings
        value = getattr(holder, option.name)
        shown = "(hidden)" if option.name in FILE_VARIANTS and value else default_text(Option(option.key, option.type, value, ""))
        rows.append((option.key, shown, loaded.sources.get(option.key, "default")))
    return rows


def settings_markdown() -> str:
    """docs/settings.md."""
    parts = [DOCUMENT_HEAD]
    for title, of_engine in (("Server", False), ("Engine", True)):
        parts.append(f"\n## {title}\n\n| key | flag | variable | allowed | default | meaning |\n| --- | --- | --- | --- | --- | --- |\n")
        parts += [_markdown_row(option) for option in OPTIONS if option.key.startswith("engine.") == of_engine]
    return "".join(parts)


def _markdown_row(option: Option) -> str:
    flag = "" if option.flag is None else f"`{option.flag}`"
    if option.plain_type is bool and option.flag:
        flag += f", `--no-{option.flag.removeprefix('--')}`"
    cells = (f"`{option.name}`", flag, f"`{option.env}`", option.bound(), default_text(option), option.help)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"
