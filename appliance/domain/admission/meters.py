"""What an owner of limits (a tenant, or one of its keys) has used: two leaky meters, its last minute, and days and months.

A meter is a generic cell rate algorithm seen from the other side: what was used leaks away at the rate of the limit, so the
burst is one minute's allowance and no window has an edge. What requests in flight may still use is outside of it and does not leak:
it counts in full until they end, and then what they used goes into the meter. So use never passes what the limit allows by then.
"""

from collections import Counter, deque
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta

from appliance.domain.access.principal import NO_LIMITS, Limits, Principal
from appliance.domain.admission.decisions import MINUTE_S, Standing

RECENT_WEIGHT = 0.1
"""Of the newest request in a running mean."""
KEPT_PERIODS = 4
"""Days and months whose use is known: a clock that was set wrongly and back finds what it left."""


@dataclass(slots=True)
class Meter:
    """Units used of a minute's allowance, as of a moment of the monotonic clock."""

    per_minute: int | None = None
    """The limit that it heeds; None: there is none, and nothing is in use."""
    used: float = 0.0
    at_ns: int = 0

    def heed(self, per_minute: int | None, now_ns: int, gained_part: float = 0.0) -> None:
        """From now on this is the limit. `gained_part` of it brings no burst.

        Under a lower one no more than its minute is owed, and what one oversized request had overdrawn of the one before.
        """
        overdrawn = max(0.0, self.level(now_ns) - (self.per_minute or 0))
        self.per_minute = per_minute
        if per_minute is not None:
            self.used = min(self.used, per_minute + overdrawn) + gained_part * per_minute

    def level(self, now_ns: int) -> float:
        """Units in use now; 0 where there is no limit."""
        leaked = (now_ns - self.at_ns) / 1e9 * (self.per_minute or 0) / MINUTE_S
        self.used = 0.0 if self.per_minute is None else max(0.0, self.used - leaked)
        self.at_ns = now_ns
        return self.used

    def add(self, units: float, now_ns: int) -> None:
        """Take units. Those that fit neither the allowance nor one oversized request (in shadow mode) are not owed."""
        level = self.level(now_ns)
        self.used = max(level, min(level + units, max(self.per_minute or 0, units)))


@dataclass(slots=True)
class LastMinute:
    """Tokens of the last 60 seconds, to the second."""

    total: int = 0
    seconds: deque[tuple[int, int]] = field(default_factory=deque[tuple[int, int]])
    """Each with its tokens, oldest first."""

    def at(self, now_ns: int) -> int:
        """Their number now."""
        while self.seconds and self.seconds[0][0] <= now_ns // 1_000_000_000 - MINUTE_S:
            self.total -= self.seconds.popleft()[1]
        return self.total

    def add(self, tokens: int, now_ns: int) -> None:
        """They came now."""
        self.total = self.at(now_ns) + tokens
        second = now_ns // 1_000_000_000
        if self.seconds and self.seconds[-1][0] == second:
            tokens += self.seconds.pop()[1]
        self.seconds.append((second, tokens))


@dataclass(frozen=True, slots=True)
class Day:
    """A day (UTC) and its month. Seconds of the wall clock."""

    day: date
    month: date
    """Its first day."""
    begin_s: float
    end_s: float
    month_end_s: float

    def holds(self, wall_s: float) -> bool:
        return self.begin_s <= wall_s < self.end_s


def day_at(wall_s: float) -> Day:
    """The day that a moment belongs to."""
    begin = datetime.fromtimestamp(wall_s, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    month = begin.replace(day=1)
    end, month_end = begin + timedelta(days=1), (month + timedelta(days=32)).replace(day=1)
    return Day(begin.date(), month.date(), begin.timestamp(), end.timestamp(), month_end.timestamp())


NO_DAY = Day(date.min, date.min, 0.0, 0.0, 0.0)


@dataclass(slots=True)
class Spent:
    """Tokens by day and by month (UTC), without what is reserved. Each has its own number, whichever way the wall clock is moved."""

    days: Counter[date] = field(default_factory=Counter[date])
    months: Counter[date] = field(default_factory=Counter[date])
    """By their first days."""
    _day: Day = NO_DAY
    """The last one that was asked for: nearly always the present one, and working it out takes longer than a decision."""

    def day(self, wall_s: float) -> Day:
        if not self._day.holds(wall_s):
            self._day = day_at(wall_s)
        return self._day

    def today(self, wall_s: float) -> int:
        return self.days[self.day(wall_s).day]

    def this_month(self, wall_s: float) -> int:
        return self.months[self.day(wall_s).month]

    def add(self, tokens: int, wall_s: float) -> None:
        """They were used then."""
        self.raise_to(self.today(wall_s) + tokens, self.this_month(wall_s) + tokens, wall_s)

    def raise_to(self, today: int, this_month: int, wall_s: float) -> None:
        """At least so many were used of the day and the month of a moment."""
        day = self.day(wall_s)
        for tokens, period, least in ((self.days, day.day, today), (self.months, day.month, this_month)):
            tokens[period] = max(tokens[period], least)
            if len(tokens) > KEPT_PERIODS:
                del tokens[next(iter(tokens))]


@dataclass(slots=True)
class Account:
    """An owner's meters. All of it is changed by the event loop only, without a wait between look and change."""

    requests: Meter = field(default_factory=Meter)
    """Requests that the engine began with."""
    tokens: Meter = field(default_factory=Meter)
    """Tokens of ended requests."""
    last_minute: LastMinute = field(default_factory=LastMinute)
    """The same, for the contract."""
    spent: Spent = field(default_factory=Spent)
    uncached_ratio: float = 1.0
    """Of late, the part of its prompts that had to be computed."""
    request_s: float = 0.0
    """How long a request of it took of late, from admission to its end; 0: not known."""
    waiting: int = 0
    """Requests that the engine has not begun with: what we refuse of them costs nothing."""
    reserved: int = 0
    """Tokens that requests in flight may still use."""
    ratio: float | None = None
    """The part of the limits that fell to this process at the last look; None: there was none."""

    def take_part(self, principal: Principal, limits: Limits, now_ns: int, committed_tpm: int | None = None) -> None:
        """Heed this process's part of the limits.

        A part that has grown brings its rate and no burst: the part's burst was another process's, which may have spent it.
        """
        if not principal.ratio:
            return  # a newcomer, for whom the others have not made room yet: it begins with the burst of its even part
        before = principal.even_ratio if self.ratio is None else self.ratio
        self.ratio = principal.ratio
        gained_part = max(0.0, 1 - before / principal.ratio)
        self.heed(limits, now_ns, gained_part)
        if gained_part and committed_tpm:
            self.last_minute.add(round(gained_part * committed_tpm), now_ns)

    def heed(self, limits: Limits, now_ns: int, gained_part: float = 0.0) -> None:
        """From now on these are the limits; so much of them was not there before and brings no burst."""
        self.requests.heed(limits.rpm, now_ns, gained_part)
        self.tokens.heed(limits.tpm, now_ns, gained_part)

    def standing(self, owner: str, limits: Limits, now_ns: int, wall_s: float, whole: Limits = NO_LIMITS) -> Standing:
        """How the owner stands under its limits at this moment. `owner`: as messages name it; `whole`: the limits before they were divided
        between processes."""
        day = self.spent.day(wall_s)
        return Standing(
            owner=owner,
            limits=limits,
            whole=whole,
            requests=self.requests.level(now_ns) + self.waiting,
            tokens=self.tokens.level(now_ns) + self.reserved,
            today=self.spent.today(wall_s) + self.reserved,
            this_month=self.spent.this_month(wall_s) + self.reserved,
            day_left_s=day.end_s - wall_s,
            month_left_s=day.month_end_s - wall_s,
        )

    def reserve(self, tokens: int) -> None:
        """One more request, which may use so many tokens."""
        self.waiting += 1
        self.reserved += tokens

    def leave_queue(self, now_ns: int, *, refused: bool) -> None:
        """The engine began with one that waited, or we refused it."""
        self.waiting -= 1
        if not refused:
            self.requests.add(1, now_ns)

    def settle(self, reserved: int, used: int, now_ns: int, wall_s: float) -> None:
        """A request ended: its reservation goes, what it used stays."""
        self.reserved -= reserved
        self.tokens.add(used, now_ns)
        self.last_minute.add(used, now_ns)
        self.spent.add(used, wall_s)


def blend(before: float, value: float) -> float:
    """A running mean that forgets."""
    return before + RECENT_WEIGHT * (value - before)
