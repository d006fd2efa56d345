"""The reports of several engines as one, for whoever asks how busy the house is."""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import reduce

import msgspec

from engine.wire import Drain, Load

NEWEST = ("time_ns", "last_sequence_id", "step_model_error_ratio")
"""Of these the larger one is the whole's; all other numbers are sums."""


def sum_of(loads: Sequence[Load]) -> Load | None:
    """None of none, and of one engine its own report. Sequence ids are each engine's own: `last_sequence_id` means nothing for several."""
    return reduce(_sum, loads) if loads else None


def pages_by_tenant(load: Load) -> dict[str, int]:
    """Pages that each tenant's sequences use in one engine: the entries of its lanes hold the same number."""
    return {entry.tenant_id: entry.pages for entry in load.tenants}


def _sum(a: Load, b: Load) -> Load:
    values: dict[str, object] = {
        "oldest_queued_ns": min(filter(None, (a.oldest_queued_ns, b.oldest_queued_ns)), default=0),
        "tenants": a.tenants + b.tenants,
        "eviction_policy": a.eviction_policy or b.eviction_policy,
        "drain": Drain(
            a.drain.prefill_tokens_per_s + b.drain.prefill_tokens_per_s,
            a.drain.rows_per_s + b.drain.rows_per_s,
            max(a.drain.step_s, b.drain.step_s),
            a.drain.free_rows + b.drain.free_rows,
            a.drain.reserved_rows + b.drain.reserved_rows,
        ),
    }
    values |= {name: max(getattr(a, name), getattr(b, name)) for name in NEWEST}
    values |= {name: _added((getattr(a, name), getattr(b, name))) for name in Load.__struct_fields__ if name not in values}
    return msgspec.structs.replace(a, **values)


def _added(numbers: Iterable[int | dict[str, int]]) -> int | dict[str, int]:
    """Two numbers, or numbers by key."""
    first, second = numbers
    if isinstance(first, dict) and isinstance(second, dict):
        return dict(Counter(first) + Counter(second))
    assert isinstance(first, int) and isinstance(second, int)
    return first + second
