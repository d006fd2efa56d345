"""`--policies`: tenants with a policy of their own, each entry checked where it is read."""

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Annotated, Any

import msgspec

from engine.errors import TraceError
from engine.wire import LANES, TenantPolicy

EXAMPLE = '[{"tenant_id": "acme", "weight": 4}]'
SHOWN_NAMES = 20

type Seconds = Annotated[float, msgspec.Meta(gt=0)]
type Ratio = Annotated[float, msgspec.Meta(ge=0, le=1)]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """What the scheduler reads of a `TenantPolicy`, within the bounds of an SLA; the rest is admission's, which is not simulated."""

    tenant_id: str
    weight: Annotated[float, msgspec.Meta(gt=0, le=1_000)]
    priority: Annotated[int, msgspec.Meta(ge=-100, le=100)]
    ttft_s: dict[str, Seconds]
    tpot_s: dict[str, Seconds]
    queue_ttl_s: Seconds | None
    committed_tpm: Annotated[int, msgspec.Meta(ge=1)] | None
    kv_reserve_ratio: Ratio
    kv_cap_ratio: Ratio


FIELDS = Entry.__struct_fields__


def read_policies(path: Path, base: TenantPolicy) -> tuple[TenantPolicy, ...]:
    """The policies of a file. What an entry does not name is as in `base`; a table of targets is taken whole.

    Raises:
        TraceError: no file, or an entry that is not right; the message names entry and field.
    """
    try:
        entries = msgspec.json.decode(path.read_bytes(), type=list[dict[str, Any]])
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}: give the path of a readable file") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: {error}: write a list such as {EXAMPLE}") from error
    policies: dict[str, TenantPolicy] = {}
    for number, entry in enumerate(entries, 1):
        where = f"{path}: entry {number} ({entry.get('tenant_id', 'no tenant_id')})"
        policy = _policy(where, entry, base)
        if policy.tenant_id in policies:
            raise TraceError(f"{where}: the tenant has an entry already: keep one")
        policies[policy.tenant_id] = policy
    return tuple(policies.values())


def check_tenants(path: Path, policies: Iterable[TenantPolicy], tenants: Collection[str]) -> None:
    """Raises TraceError for a policy of a tenant that the trace does not have: it would change nothing."""
    for policy in policies:
        if policy.tenant_id not in tenants:
            more = f" and {len(tenants) - SHOWN_NAMES} more" if len(tenants) > SHOWN_NAMES else ""
            known = ", ".join(sorted(tenants)[:SHOWN_NAMES]) + more
            raise TraceError(f"{path}: tenant_id {policy.tenant_id!r} is no tenant of this trace; they are {known}")


def _policy(where: str, entry: dict[str, Any], base: TenantPolicy) -> TenantPolicy:
    for name in entry:
        if name not in FIELDS:
            raise TraceError(f"{where}: {name} is no field that a simulation follows; the fields are {', '.join(FIELDS)}")
    if not entry.get("tenant_id"):
        raise TraceError(f"{where}: tenant_id is missing: name the tenant, as in {EXAMPLE}")
    try:
        found = msgspec.convert({name: getattr(base, name) for name in FIELDS} | entry, Entry)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$.")
        raise TraceError(f"{where}: {place.rstrip('`')}: {reason[:1].lower()}{reason[1:]}") from error
    for name, table in (("ttft_s", found.ttft_s), ("tpot_s", found.tpot_s)):
        if unknown := [lane for lane in table if lane not in LANES]:
            raise TraceError(f"{where}: {name}: {unknown[0]!r} is no lane; the lanes are {', '.join(LANES)}")
    return msgspec.structs.replace(base, **msgspec.structs.asdict(found))
