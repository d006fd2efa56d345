"""Addresses below `/ui/` that no page has."""

from litestar import Controller, Response, get
from litestar.params import FromPath

from appliance.errors import NotFound
from appliance.route_access import READS


class LostController(Controller):
    """Whatever no other page takes."""

    @get("/{lost:path}", opt=READS)
    async def lost(self, lost: FromPath[str]) -> Response[str]:
        """404, as a page."""
        raise NotFound(f"there is no page {lost[:80]!r}: choose one from the menu")
