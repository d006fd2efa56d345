"""How limits are divided between serving processes. Pure.

Each process holds an even share of every limit, so that all shares together are the limit and never more, also while members
come and go: a newcomer holds nothing until every other one has seen it and made room; whoever has gone is counted until it has
been silent over `EXPIRY_BEATS` of the observer's own beats.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import msgspec

from appliance.domain.access.principal import Limits, Principal


@dataclass(frozen=True, slots=True)
class Member:
    """A serving process as the database has it."""

    id: str
    joined: int
    beats: int
    knows: int


@dataclass(frozen=True, slots=True)
class Share:
    """One of `processes` even parts of a limit; the first `rank`s get what does not divide evenly. No rank: nobody is sure who does."""

    processes: int = 1
    rank: int | None = 0
    is_waiting: bool = False
    """A newcomer, for whom the others have not made room yet."""

    def of(self, limit: int | None) -> int | None:
        """This process's part of a limit; None is no limit."""
        if limit is None or self.processes == 1:
            return limit
        if self.is_waiting:
            return 0
        return limit // self.processes + (self.rank is not None and self.rank < limit % self.processes)


WHOLE = Share()


def decide_share(own_id: str, alive: Collection[Member], last: Sequence[str]) -> Share:
    """This process's share among the living, of whom it is one. `last` are the ids that it divided by the time before.

    While members change, ranks may be read differently by two processes, so that the remainders belong to nobody.
    """
    by_age = sorted(alive, key=lambda member: member.joined)
    if len(by_age) == 1:
        return WHOLE
    own = next(member for member in by_age if member.id == own_id)
    others = [member for member in by_age if member.id != own_id]
    is_waiting = any(member.knows < own.joined for member in others)
    ids = [member.id for member in by_age]
    newest = by_age[-1].joined
    is_settled = list(last) == ids and all(member.knows >= newest for member in others)
    return Share(len(by_age), ids.index(own_id) if is_settled else None, is_waiting)


def with_share(principal: Principal, share: Share) -> Principal:
    """The caller under this process's part of its ceilings. Budgets of a day and a month are not divided: their use is shared."""
    if share.processes == 1:
        return principal
    policy, limits = principal.policy, principal.limits
    part = msgspec.structs.replace(
        policy,
        rpm=share.of(policy.rpm),
        tpm=share.of(policy.tpm),
        committed_tpm=share.of(policy.committed_tpm),
        max_concurrency=share.of(policy.max_concurrency),
        max_queued=share.of(policy.max_queued),
    )
    return replace(
        principal, policy=part, limits=Limits(share.of(limits.rpm), share.of(limits.tpm), limits.tokens_per_day, limits.tokens_per_month)
    )
