"""A database that does not answer, as the log tells it: once when it begins, once a minute while it lasts, once when it is over."""

from dataclasses import dataclass
from typing import Literal

import structlog

log = structlog.get_logger(__name__)

REMIND_EVERY_S = 60.0


@dataclass(slots=True)
class Outage:
    """Of one kind of access: a database may answer questions and take no writes. Times are seconds of one monotonic clock."""

    of: Literal["reads", "writes"]
    _began_s: float | None = None
    _told_s: float = 0.0
    _untold: int = 0
    """Failures since the last line."""

    @property
    def lasts(self) -> bool:
        """The newest access failed."""
        return self._began_s is not None

    def failed(self, error: str, now_s: float) -> None:
        """An access failed."""
        self._untold += 1
        if self._began_s is None:
            self._began_s = now_s
        elif now_s - self._told_s < REMIND_EVERY_S:
            return
        log.warning("database_unavailable", of=self.of, error=error, failures=self._untold, since_s=round(now_s - self._began_s, 1))
        self._told_s, self._untold = now_s, 0

    def succeeded(self, now_s: float) -> None:
        """An access succeeded."""
        if self._began_s is not None:
            log.info("database_available", of=self.of, failures=self._untold, after_s=round(now_s - self._began_s, 1))
            self._began_s, self._untold = None, 0
