"""What an engine reported last, and what was handed to it since: the situation that admission judges by."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from appliance.domain.admission.forecast import Queued, Situation
from engine.wire import Drain, EngineConfig, Load, TenantLoad


@dataclass(frozen=True, slots=True)
class Handed:
    """A sequence that the last report may not know of."""

    tenant_id: str
    lane: str
    tokens: float
    weight: float


class LoadView:
    """One engine's. Written by its reports and by submits, read by each decision."""

    def __init__(self, shares: Mapping[str, float], *, is_fair: bool = True) -> None:
        self._shares = shares
        self._is_fair = is_fair
        self._load: Load | None = None
        self._handed: dict[int, Handed] = {}
        self._reported: dict[tuple[str, str], Queued] | None = None
        """What the last report says by tenant and lane; made for the first decision after it, for others to use."""

    def note_load(self, load: Load | None) -> None:
        """A new report; None: the engine is gone, and what it was handed with it."""
        self._load, self._reported = load, None
        last = load.last_sequence_id if load is not None else None
        self._handed = {sequence_id: handed for sequence_id, handed in self._handed.items() if last is not None and sequence_id > last}

    def note_submit(self, sequence_id: int, handed: Handed) -> None:
        """A sequence goes to the engine."""
        self._handed[sequence_id] = handed

    def situation(self) -> Situation:
        """Now. Without a report nothing waits and no rate is known."""
        load = self._load
        if self._reported is None:
            self._reported = _merged({}, map(_reported, load.tenants if load else ()))
        queued = _merged(self._reported, map(_queued, self._handed.values())) if self._handed else self._reported
        return Situation(queued=list(queued.values()), drain=load.drain if load else Drain(), shares=self._shares, is_fair=self._is_fair)


def load_view_of(config: EngineConfig) -> LoadView:
    """The view of an engine with this configuration."""
    shares = {"slow": config.slow_share, "batch": config.batch_share}
    return LoadView(shares, is_fair=config.scheduling_policy in ("vtc", "wrr"))


def _reported(load: TenantLoad) -> Queued:
    return Queued(
        tenant_id=load.tenant_id,
        lane=load.lane,
        tokens=load.queued_tokens,
        waiting_rows=load.queued_rows,
        running_rows=load.running_rows,
        weight=load.weight,
        debt=load.debt,
    )


def _queued(handed: Handed) -> Queued:
    return Queued(tenant_id=handed.tenant_id, lane=handed.lane, tokens=handed.tokens, waiting_rows=1, weight=handed.weight)


def _merged(known: Mapping[tuple[str, str], Queued], more: Iterable[Queued]) -> dict[tuple[str, str], Queued]:
    """One entry a tenant and lane: the counters' bound holds for all of a tenant's work together."""
    merged = dict(known)
    for each in more:
        key = (each.tenant_id, each.lane)
        before = merged.get(key)
        merged[key] = (
            each
            if before is None
            else Queued(
                tenant_id=each.tenant_id,
                lane=each.lane,
                tokens=before.tokens + each.tokens,
                waiting_rows=before.waiting_rows + each.waiting_rows,
                running_rows=before.running_rows + each.running_rows,
                weight=before.weight,
                debt=max(before.debt, each.debt),
            )
        )
    return merged
