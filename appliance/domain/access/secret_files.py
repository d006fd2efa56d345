"""Secrets made at the first start, kept in the data directory with mode 0600."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

from appliance.settings import SettingsError


def read_secret(path: Path) -> str | None:
    """The secret in a file; None where there is no file or nothing in it. Raises `SettingsError` where it can not be read."""
    try:
        return path.read_text().strip() or None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SettingsError(f"{path} can not be read ({error.strerror}): give it to the user that the appliance runs as") from error


def read_or_make_secret(path: Path, make: Callable[[], str]) -> str:
    """The secret in a file, made and written first where there is none. Two processes starting at once get the same.

    Raises `SettingsError` where the file is there but empty, or can not be written.
    """
    found = read_secret(path)
    if found is not None:
        return found
    try:
        _write(path, make() + "\n")
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = "make room on its disk" if is_full else "give its folder to the user that the appliance runs as"
        raise SettingsError(
            f"{path} can not be written ({error.strerror}): {remedy}, or name another one with FAIRLANE_DATA_DIR"
        ) from error
    secret = read_secret(path)
    if secret is None:
        raise SettingsError(f"{path} is empty: remove it, and a new secret is made")
    return secret


def _write(path: Path, text: str) -> None:
    """Whole or not at all, and never over another process's. Raises `OSError`."""
    mine = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(mine, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
        os.link(mine, path)
    except FileExistsError:
        pass
    finally:
        mine.unlink(missing_ok=True)
