"""Styles and scripts: read once, served with a name that changes with their content, so that browsers may keep them for ever."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from appliance.errors import NotFound

STATIC_FOLDER = Path(__file__).parent / "static"
MEDIA_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml", ".txt": "text/plain"}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file as it is served."""

    content: bytes
    media_type: str
    digest: str


class Assets:
    """All files below a folder, by their path in it."""

    def __init__(self, folder: Path = STATIC_FOLDER) -> None:
        self._assets = {
            path.relative_to(folder).as_posix(): _read(path) for path in sorted(folder.rglob("*")) if path.suffix in MEDIA_TYPES
        }

    def url(self, name: str) -> str:
        """Where a file is served, as long as it has this content. `name` must be there."""
        return f"/ui/static/{name}?v={self._assets[name].digest}"

    def find(self, name: str) -> Asset:
        """A file by its path in the folder. Raises `NotFound`."""
        asset = self._assets.get(name)
        if asset is None:
            raise NotFound(f"there is no file {name[:80]!r} here")
        return asset


def _read(path: Path) -> Asset:
    content = path.read_bytes()
    return Asset(content, MEDIA_TYPES[path.suffix], hashlib.sha256(content).hexdigest()[:12])
