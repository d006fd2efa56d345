"""Whether the file of a SQLite database is still the one that was opened."""

from pathlib import Path

from sqlalchemy import make_url

from appliance.errors import Unavailable

RETRY_AFTER_S = 2.0
REPLACED = "the database file was removed or replaced while this server runs: put it back, or restart the server"
"""Without its path: everybody may ask /readyz."""


class OpenFile:
    """The file of a SQLite database. SQLite goes on in a file that was removed or replaced, and what it writes there is lost."""

    def __init__(self, url: str) -> None:
        name = make_url(url).database
        self._path = Path(name) if name and url.startswith("sqlite") else None
        self._identity: tuple[int, int] | None = None

    def require_same(self) -> None:
        """Raises `Unavailable` where the path is not the file any more that it was when it was first there."""
        if self._path is None:
            return
        try:
            found = self._path.stat()
        except OSError:
            identity = None
        else:
            identity = found.st_dev, found.st_ino
        self._identity = self._identity or identity
        if identity != self._identity:
            raise Unavailable(REPLACED, reason="database_unavailable", retry_after_s=RETRY_AFTER_S)
