"""What an owner of limits (a tenant, or one of its keys) has used: two leaky meters and the spending of a day and a month.

A meter is a generic cell rate algorithm seen from the other side: what was used leaks away at the rate of the limit, so the
burst is one minute's allowance and no window has an edge. It holds no limit; a changed limit counts from the next look.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from appliance.domain.access.principal import Limits, Principal
from appliance.domain.admission.decisions import Standing

MINUTE_S = 60.0
RECENT_WEIGHT = 0.1
"""Of the newest request in a running mean."""


@dataclass(slots=True)
class Meter:
    """Units used of a minute's allowance, as of a moment of the monotonic clock."""

    used: float = 0.0
    at_ns: int = 0

    def level(self, per_minute: int | None, now_ns: int) -> float:
        """Units in use now; 0 where there is no limit."""
        if per_minute is None:
            self.used = 0.0
        else:
            self.used = max(0.0, self.used - (now_ns - self.at_ns) / 1e9 * per_minute / MINUTE_S)
        self.at_ns = now_ns
        return self.used

    def add(self, units: float) -> None:
        """Take units, or give them back (below 0)."""
        self.used = max(0.0, self.used + units)


@dataclass(slots=True)
class Spent:
    """Tokens of the present day and month (UTC), without what is reserved."""

    day: tuple[int, int, int] = (0, 0, 0)
    today: int = 0
    this_month: int = 0

    def turn(self, now: datetime) -> None:
        """Begin at 0 where a new day or month began."""
        day = (now.year, now.month, now.day)
        if day == self.day:
            return
        if day[:2] != self.day[:2]:
            self.this_month = 0
        self.day, self.today = day, 0


@dataclass(slots=True)
class Account:
    """An owner's meters. All of it is changed by the event loop only, without a wait between look and change."""

    requests: Meter = field(default_factory=Meter)
    tokens: Meter = field(default_factory=Meter)
    committed: Meter = field(default_factory=Meter)
    """Tokens of the contract's last minute."""
    spent: Spent = field(default_factory=Spent)
    uncached_ratio: float = 1.0
    """Of late, the part of its prompts that had to be computed."""
    request_s: float = 0.0
    """How long a request of it took of late, from admission to its end; 0: not known."""
    reserved: int = 0
    """Tokens that requests in flight may still use."""
    ratio: float | None = None
    """The part of the limits that fell to this process at the last look; None: there was none."""

    def take_part(self, principal: Principal, limits: Limits, committed_tpm: int | None = None) -> None:
        """A part that has grown brings its rate and no burst: the part's burst was another process's, which may have spent it."""
        if not principal.ratio:
            return  # a newcomer, for whom the others have not made room yet: it begins with the burst of its even part
        before = principal.even_ratio if self.ratio is None else self.ratio
        self.ratio = principal.ratio
        if principal.ratio > before:
            gained = 1 - before / principal.ratio
            for meter, limit in ((self.requests, limits.rpm), (self.tokens, limits.tpm), (self.committed, committed_tpm)):
                meter.add(gained * (limit or 0))

    def standing(self, owner: str, limits: Limits, now_ns: int, wall_s: float) -> Standing:
        """How the owner stands under its limits at this moment. `owner`: as messages name it."""
        now = datetime.fromtimestamp(wall_s, UTC)
        self.spent.turn(now)
        return Standing(
            owner=owner,
            limits=limits,
            requests=self.requests.level(limits.rpm, now_ns),
            tokens=self.tokens.level(limits.tpm, now_ns),
            today=self.spent.today + self.reserved,
            this_month=self.spent.this_month + self.reserved,
            day_left_s=seconds_left_of_day(now),
            month_left_s=seconds_left_of_month(now),
        )

    def reserve(self, tokens: int) -> None:
        """One more request, which may use so many tokens."""
        self.requests.add(1)
        self.tokens.add(tokens)
        self.committed.add(tokens)
        self.reserved += tokens

    def settle(self, reserved: int, used: int, wall_s: float) -> None:
        """The request ended: its reservation goes, what it used stays."""
        self.reserved -= reserved
        self.tokens.add(used - reserved)
        self.committed.add(used - reserved)
        self.spent.turn(datetime.fromtimestamp(wall_s, UTC))
        self.spent.today += used
        self.spent.this_month += used


def blend(before: float, value: float) -> float:
    """A running mean that forgets."""
    return before + RECENT_WEIGHT * (value - before)


def seconds_left_of_day(now: datetime) -> float:
    """Until the next midnight (UTC)."""
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    return (midnight - now).total_seconds()


def seconds_left_of_month(now: datetime) -> float:
    """Until the first of the next month (UTC)."""
    first = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return ((first + timedelta(days=32)).replace(day=1) - now).total_seconds()
