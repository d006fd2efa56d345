"""Secrets made at the first start, kept in the data directory with mode 0600."""

import os
from collections.abc import Callable
from pathlib import Path

from appliance.settings import SettingsError


def read_secret(path: Path) -> str | None:
    """The secret in a file; None where there is no file or nothing in it."""
    try:
        return path.read_text().strip() or None
    except FileNotFoundError:
        return None


def read_or_make_secret(path: Path, make: Callable[[], str]) -> str:
    """The secret in a file, made and written first where there is none. Two processes starting at once get the same.

    Raises `SettingsError` where the file is there but empty.
    """
    found = read_secret(path)
    if found is not None:
        return found
    mine = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(mine, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(make() + "\n")
    try:
        os.link(mine, path)  # whole or not at all, and never over another process's
    except FileExistsError:
        pass
    finally:
        mine.unlink()
    secret = read_secret(path)
    if secret is None:
        raise SettingsError(f"{path} is empty: remove it, and a new secret is made")
    return secret
