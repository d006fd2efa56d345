"""Writing audit events in the transaction of the change they tell of, and reading them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.domain.audit.models import AuditEvent
from appliance.errors import NotFound

SECRET_FIELDS = frozenset({"key", "digest", "password", "password_hash", "token"})
MASK = "(hidden)"


@dataclass(frozen=True, slots=True)
class Actor:
    """Who makes a change, and from where."""

    name: str
    source: str
    request_id: str = ""
    id: str = ""


def record(
    session: AsyncSession, actor: Actor, action: str, target: str, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
) -> bool:
    """Add an event. What is the same before and after is left out; without any difference there is no event (False)."""
    if before is not None and after is not None:
        changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        if not changed:
            return False
        before = {name: before.get(name) for name in changed}
        after = {name: after.get(name) for name in changed}
    session.add(
        AuditEvent(
            actor=actor.name[:100],
            actor_id=actor.id[:100],
            source=actor.source[:100],
            request_id=actor.request_id,
            action=action,
            target=target[:200],
            before=_masked(before),
            after=_masked(after),
        )
    )
    return True


async def list_events(
    session: AsyncSession, before_id: int | None, limit: int, target: str | None = None, *, within: bool = False, actor: str = ""
) -> list[AuditEvent]:
    """Events, newest first: those before an event, of one target (`within`: and of what belongs to it, as a tenant's keys), and of
    who has a text in its name, where given."""
    events = select(AuditEvent).order_by(AuditEvent.id.desc()).limit(limit)
    if before_id is not None:
        events = events.where(AuditEvent.id < before_id)
    if target is not None:
        below = AuditEvent.target.startswith(f"{target}/", autoescape=True)
        events = events.where((AuditEvent.target == target) | below if within else AuditEvent.target == target)
    if actor:
        events = events.where(AuditEvent.actor.icontains(actor, autoescape=True))
    return list((await session.scalars(events)).all())


async def require_target(session: AsyncSession, target: str) -> None:
    """Raises `NotFound` where no event ever was of a target or of what belongs to it."""
    if not await list_events(session, None, 1, target, within=True):
        message = (
            f"the audit has no event of {target[:80]!r}; a target is tenant:SLUG, tenant:SLUG/key:ID, tier:NAME, admin:NAME or installation"
        )
        raise NotFound(message, code="target_not_found", param="target")


def _masked(fields: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if fields is None:
        return None
    return msgspec.to_builtins({name: MASK if name in SECRET_FIELDS else value for name, value in fields.items()})
