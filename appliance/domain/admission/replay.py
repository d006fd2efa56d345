"""What a tenant's limits would have done to requests that came already: they are admitted again, one after the other, on paper. Pure.

It knows what the reports of ended requests say. Output lengths are those that were, not the most that were reserved, so it refuses
rather too little; what was refused then is let in again if the limits now allow it, with the tokens that are known of it.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush

from appliance.domain.access.principal import Limits
from appliance.domain.admission.decisions import Occupancy, own_limit
from appliance.domain.admission.meters import Account
from appliance.telemetry.requests import RequestReport
from engine.wire import TenantPolicy

TOO_LONG, QUEUE_TIMEOUT = "too_long", "queue_timeout"


@dataclass(frozen=True, slots=True)
class Replay:
    """Of so many requests, how many would have been refused, by reason."""

    requests: int
    refused: Counter[str]

    @property
    def num_refused(self) -> int:
        return self.refused.total()


def replay(
    policy: TenantPolicy, reports: Iterable[RequestReport], wall_s: float, now_ns: int, today: int = 0, this_month: int = 0
) -> Replay:
    """`reports` are one tenant's. `wall_s` is the wall clock at `now_ns`; `today` and `this_month` what it had used before them."""
    arrivals = sorted(reports, key=lambda report: report.received_ns)
    account, limits = Account(), Limits(policy.rpm, policy.tpm, policy.tokens_per_day, policy.tokens_per_month)
    account.spent.raise_to(today, this_month, wall_s)
    account.heed(limits, 0)
    ends: list[int] = []
    starts: list[int] = []
    refused: Counter[str] = Counter()
    for report in arrivals:
        at_ns, tokens = report.received_ns, report.billed.tokens
        for times in (ends, starts):
            while times and times[0] <= at_ns:
                heappop(times)
        reason = _reason(policy, report, tokens)
        if not reason:
            standing = account.standing(policy.tenant_id, limits, at_ns, wall_s - (now_ns - at_ns) / 1e9)
            verdict = own_limit(policy, Occupancy(len(ends), len(starts), len(starts)), [standing], tokens)
            reason = verdict.reason if verdict else ""
        if reason:
            refused[reason] += 1
            continue
        account.reserve(tokens)
        account.leave_queue(at_ns, refused=False)
        account.settle(tokens, tokens, at_ns, wall_s - (now_ns - at_ns) / 1e9)
        heappush(ends, report.ended_ns)
        heappush(starts, report.scheduled_ns or report.ended_ns)
    return Replay(len(arrivals), refused)


def _reason(policy: TenantPolicy, report: RequestReport, tokens: int) -> str:
    """Why the request itself would not be served, whatever else there is."""
    if policy.max_context_tokens is not None and tokens > policy.max_context_tokens:
        return TOO_LONG
    waited_s = ((report.scheduled_ns or report.ended_ns) - report.received_ns) / 1e9
    return QUEUE_TIMEOUT if policy.queue_ttl_s is not None and waited_s > policy.queue_ttl_s else ""
