"""Tenants and keys as the API takes and shows them."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec

from appliance.domain.access.models import ApiKey
from appliance.domain.access.principal import Limits, Scope
from appliance.domain.access.snapshot import scopes_left
from appliance.domain.slas.decisions import SLA_FIELDS, Positive, Sla
from appliance.domain.tenants.service import TenantWithTier


class NewTenant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /tenants`."""

    slug: Annotated[str, msgspec.Meta(description="1 to 63 of a-z, 0-9, - and _; never changes", examples=["acme"])]
    name: Annotated[str | None, msgspec.Meta(description="for people; the slug where left out")] = None
    tier: Annotated[str, msgspec.Meta(description="name of an SLA tier", examples=["interactive"])] = "standard"
    overrides: Annotated[
        dict[str, Any], msgspec.Meta(description="SLA fields that differ from the tier's; null lifts a limit", examples=[{"rpm": 600}])
    ] = {}
    trust_group: Annotated[str, msgspec.Meta(description="tenants of one group share cached prefixes; empty: alone")] = ""


class TenantView(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant. `effective` is the SLA it runs under: the tier's fields with its overrides."""

    slug: str
    name: str
    status: str
    tier: str
    trust_group: str
    overrides: dict[str, Any]
    effective: Sla
    sources: dict[str, Literal["tier", "override"]]
    """Where each field of `effective` comes from."""
    version: int
    created_at: datetime
    warnings: list[str] = []
    """Of a change: accepted, and yet worth a second look."""


class TenantList(msgspec.Struct, frozen=True):
    """A page by slug; `next` is the `after` of the next page, null on the last one."""

    tenants: list[TenantView]
    next: str | None = None


class TenantPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of `PATCH /tenants/{slug}`: what is left out or null stays as it is."""

    version: Annotated[int | None, msgspec.Meta(description="the version that was read; 409 where it is no longer the present one")] = None
    name: str | None = None
    tier: str | None = None
    overrides: Annotated[dict[str, Any] | None, msgspec.Meta(description="all overrides: they replace the present ones")] = None
    status: Literal["active", "suspended"] | None = None
    trust_group: str | None = None


class KeyPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of `PATCH /tenants/{slug}/keys/{id}`: what is left out stays; null lifts it."""

    version: int | None = None
    name: str | msgspec.UnsetType = msgspec.UNSET
    scopes: list[str] | msgspec.UnsetType = msgspec.UNSET
    models: list[str] | msgspec.UnsetType = msgspec.UNSET
    lanes: list[str] | msgspec.UnsetType = msgspec.UNSET
    expires_at: datetime | msgspec.UnsetType | None = msgspec.UNSET
    rpm: Positive | msgspec.UnsetType | None = msgspec.UNSET
    tpm: Positive | msgspec.UnsetType | None = msgspec.UNSET
    tokens_per_day: Positive | msgspec.UnsetType | None = msgspec.UNSET
    tokens_per_month: Positive | msgspec.UnsetType | None = msgspec.UNSET


class Rotation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /tenants/{slug}/keys/{id}/rotate`."""

    grace_s: Annotated[float, msgspec.Meta(description="how long the old key still works, at most 30 days")] = 3_600.0


def given(patch: TenantPatch | KeyPatch) -> dict[str, Any]:
    """The changes a patch asks for, without the version."""
    absent = None if isinstance(patch, TenantPatch) else msgspec.UNSET
    return {name: value for name, value in msgspec.structs.asdict(patch).items() if value is not absent and name != "version"}


class NewKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /tenants/{slug}/keys`."""

    name: Annotated[str, msgspec.Meta(description="what the key is for")]
    scopes: Annotated[
        list[str], msgspec.Meta(description="inference, gateway (speaks for any tenant), metrics, admin:read, admin:write")
    ] = msgspec.field(default_factory=lambda: ["inference"])
    models: Annotated[list[str], msgspec.Meta(description="models it may use; empty: all")] = []
    lanes: Annotated[list[str], msgspec.Meta(description="lanes it may ask for; empty: the tenant's")] = []
    expires_at: Annotated[datetime | None, msgspec.Meta(description="refused from then on; null: never")] = None
    rpm: Annotated[Positive | None, msgspec.Meta(description="requests a minute, beneath the tenant's limit; null: only the tenant's")] = (
        None
    )
    tpm: Annotated[Positive | None, msgspec.Meta(description="tokens a minute, likewise")] = None
    tokens_per_day: Annotated[Positive | None, msgspec.Meta(description="budget of tokens a day (UTC), likewise")] = None
    tokens_per_month: Annotated[Positive | None, msgspec.Meta(description="budget of tokens a month (UTC), likewise")] = None

    @property
    def limits(self) -> Limits:
        return Limits(self.rpm, self.tpm, self.tokens_per_day, self.tokens_per_month)


class KeyView(msgspec.Struct, frozen=True, kw_only=True):
    """A key as it may be shown again: never the key itself."""

    id: str
    tenant: str
    name: str
    prefix: str
    last4: str
    scopes: list[str]
    models: list[str]
    lanes: list[str]
    rpm: int | None
    tpm: int | None
    tokens_per_day: int | None
    tokens_per_month: int | None
    lineage_id: str | None
    """The first key of its row of rotations, with which its own limits are counted together; null: it was rotated from none."""
    granted_by: str | None
    """Whose end is the end of its scopes of administration: an administrator's id, with a slash that of the token; null: nobody's."""
    grantor_gone: bool
    """That administrator is disabled, removed or demoted, or the token revoked: as a key of administration it is refused."""
    expires_at: datetime | None
    grace_until: datetime | None
    """After a rotation: refused from then on."""
    disabled_at: datetime | None
    version: int
    created_at: datetime


class CreatedKey(msgspec.Struct, frozen=True, kw_only=True):
    """The one answer that holds the key. Store it: it is not shown again."""

    id: str
    key: str
    tenant: str
    name: str
    scopes: list[str]
    expires_at: datetime | None


class KeyList(msgspec.Struct, frozen=True):
    """A page, oldest first; `next` is the `after` of the next page, null on the last one."""

    keys: list[KeyView]
    next: str | None = None


def tenant_view(found: TenantWithTier) -> TenantView:
    tenant = found.tenant
    return TenantView(
        slug=tenant.slug,
        name=tenant.name,
        status=tenant.status,
        tier=found.tier.name,
        trust_group=tenant.trust_group,
        overrides=tenant.overrides,
        effective=found.effective,
        sources={field: "override" if field in tenant.overrides else "tier" for field in SLA_FIELDS},
        version=tenant.version,
        created_at=tenant.created_at,
    )


def key_view(row: ApiKey, tenant: str, grantors: Mapping[str, frozenset[Scope]]) -> KeyView:
    """`grantors`: what administrators and tokens may do now, as in `AccessSnapshot.grantors`."""
    return KeyView(
        id=row.id,
        tenant=tenant,
        name=row.name,
        prefix=row.prefix,
        last4=row.last4,
        scopes=row.scopes,
        models=row.models,
        lanes=row.lanes,
        rpm=row.rpm,
        tpm=row.tpm,
        tokens_per_day=row.tokens_per_day,
        tokens_per_month=row.tokens_per_month,
        lineage_id=row.lineage_id,
        granted_by=row.granted_by,
        grantor_gone=row.granted_by is not None and not scopes_left(row.scopes, row.granted_by, grantors),
        expires_at=row.expires_at,
        grace_until=row.grace_until,
        disabled_at=row.disabled_at,
        version=row.version,
        created_at=row.created_at,
    )
