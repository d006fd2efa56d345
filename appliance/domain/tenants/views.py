"""Tenants and keys as the API takes and shows them."""

from datetime import datetime
from typing import Annotated, Any

import msgspec

from appliance.domain.access.models import ApiKey
from appliance.domain.access.principal import Limits
from appliance.domain.slas.decisions import Positive, Sla
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
    version: int
    created_at: datetime


class TenantList(msgspec.Struct, frozen=True):
    tenants: list[TenantView]


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
    expires_at: datetime | None
    disabled_at: datetime | None
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
    keys: list[KeyView]


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
        version=tenant.version,
        created_at=tenant.created_at,
    )


def key_view(row: ApiKey, tenant: str) -> KeyView:
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
        expires_at=row.expires_at,
        disabled_at=row.disabled_at,
        created_at=row.created_at,
    )
