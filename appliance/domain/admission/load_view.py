"""What an engine reported last, and what was handed to it since: the situation that admission judges by."""

from collections.abc import Mapping
from dataclasses import dataclass

from appliance.domain.admission.forecast import Queued, Situation
from engine.wire import Drain, EngineConfig, Load


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

    def note_load(self, load: Load | None) -> None:
        """A new report; None: the engine is gone, and what it was handed with it."""
        self._load = load
        last = load.last_sequence_id if load is not None else None
        self._handed = {sequence_id: handed for sequence_id, handed in self._handed.items() if last is not None and sequence_id > last}

    def note_submit(self, sequence_id: int, handed: Handed) -> None:
        """A sequence goes to the engine."""
        self._handed[sequence_id] = handed

    def situation(self) -> Situation:
        """Now. Without a report nothing waits and no rate is known."""
        load = self._load
        queued = [
            Queued(
                tenant_id=t.tenant_id,
                lane=t.lane,
                tokens=t.queued_tokens,
                waiting_rows=t.queued_rows,
                running_rows=t.running_rows,
                weight=t.weight,
                debt=t.debt,
            )
            for t in (load.tenants if load else ())
        ]
        queued += [
            Queued(tenant_id=h.tenant_id, lane=h.lane, tokens=h.tokens, waiting_rows=1, weight=h.weight) for h in self._handed.values()
        ]
        return Situation(queued=_merged(queued), drain=load.drain if load else Drain(), shares=self._shares, is_fair=self._is_fair)


def load_view_of(config: EngineConfig) -> LoadView:
    """The view of an engine with this configuration."""
    shares = {"slow": config.slow_share, "batch": config.batch_share}
    return LoadView(shares, is_fair=config.scheduling_policy in ("vtc", "wrr"))


def _merged(queued: list[Queued]) -> list[Queued]:
    """One entry a tenant and lane: the counters' bound holds for all of a tenant's work together."""
    merged: dict[tuple[str, str], Queued] = {}
    for each in queued:
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
    return list(merged.values())
