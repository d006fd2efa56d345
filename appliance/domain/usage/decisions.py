"""What usage is counted by, and how counts are kept until they are written. Pure."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import msgspec

from appliance.errors import Invalid
from appliance.telemetry.requests import RequestReport

MAX_MODEL_CHARS = 255
DEFAULT_SPAN = timedelta(days=1)
FIRST_TIME = datetime.min.replace(tzinfo=UTC)


class UsageKey(msgspec.Struct, frozen=True, array_like=True):
    """What requests of a row have in common. `minute` is the Unix time of its beginning."""

    minute: int
    tenant: str
    key_id: str
    model: str
    lane: str
    outcome: str


class Counts(msgspec.Struct, array_like=True):
    """Sums over requests."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0

    def add(self, other: "Counts") -> None:
        self.requests += other.requests
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens
        self.generated_tokens += other.generated_tokens


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """Counts that are written at once. A writer numbers its batches upwards, so one that comes again is known."""

    writer: str
    number: int
    rows: list[tuple[UsageKey, Counts]]

    @property
    def num_requests(self) -> int:
        """Whose usage this is."""
        return sum(counts.requests for _, counts in self.rows)


def entry_of(report: RequestReport, model: str, wall_s: float) -> tuple[UsageKey, Counts]:
    """A settled request as an entry of the books."""
    key = UsageKey(int(wall_s) // 60 * 60, report.tenant_id, report.key_id, model[:MAX_MODEL_CHARS], report.lane, report.outcome.value)
    billed = report.billed
    return key, Counts(1, billed.prompt, billed.cached, billed.generated)


def merged(rows: Iterable[tuple[UsageKey, Counts]]) -> list[tuple[UsageKey, Counts]]:
    """One row for each key."""
    sums: dict[UsageKey, Counts] = {}
    for key, counts in rows:
        sums.setdefault(key, Counts()).add(counts)
    return list(sums.items())


def by_hour(rows: list[tuple[UsageKey, Counts]]) -> list[tuple[UsageKey, Counts]]:
    """The same counts by the hour."""
    return merged((msgspec.structs.replace(key, minute=key.minute // 3600 * 3600), counts) for key, counts in rows)


def span_of(from_text: str | None, to_text: str | None, now: datetime) -> tuple[datetime, datetime]:
    """The span a question is about: the last 24 hours where it says nothing. Raises `Invalid`."""
    end = _time("to", to_text) or now + timedelta(seconds=1)
    begin = _time("from", from_text) or max(end, FIRST_TIME + DEFAULT_SPAN) - DEFAULT_SPAN
    if begin >= end:
        raise Invalid(f"from ({begin.isoformat()}) must be before to ({end.isoformat()})", param="from")
    return begin, end


def _time(param: str, text: str | None) -> datetime | None:
    if not text:
        return None
    try:
        time = datetime.fromisoformat(text)
        if time.tzinfo is not None:
            return time.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise Invalid(f"{param} is {text[:64]!r}: write a time with its zone, like 2030-01-31T12:00:00Z", param=param)
