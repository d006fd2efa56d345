"""Sessions as the database last gave them: while it does not answer, pages can be looked at by whoever was in already.

A session is recalled until it would have ended by itself. It is forgotten when it ends here, and not believed where its administrator
was changed since, as far as the access snapshot knows; a logout at another process is known there alone.
"""

from collections import OrderedDict
from collections.abc import Mapping

from appliance.domain.access.snapshot import Admin
from appliance.domain.admins.sessions import OpenSession

MAX_RECALLED = 1_000
"""The ones that were not used for longest are forgotten first."""


class SessionRecall:
    """By the digest of the cookie. Times are seconds of the wall clock."""

    def __init__(self, max_recalled: int = MAX_RECALLED) -> None:
        self._max_recalled = max_recalled
        self._sessions: OrderedDict[bytes, OpenSession] = OrderedDict()

    def note(self, digest: bytes, found: OpenSession | None) -> None:
        """What the database says of a cookie; None: it is no session's."""
        self._sessions.pop(digest, None)
        if found is not None:
            self._sessions[digest] = found
            if len(self._sessions) > self._max_recalled:
                self._sessions.popitem(last=False)

    def admin(self, digest: bytes, admin_versions: Mapping[str, int], now_s: float) -> Admin | None:
        """Whose session it was; None where it is not known, has ended, or its administrator is newer than it."""
        found = self._sessions.get(digest)
        if found is None or now_s >= found.ends_s:
            return None
        present = admin_versions.get(found.admin.admin_id)
        return found.admin if present is not None and present <= found.admin_version else None
