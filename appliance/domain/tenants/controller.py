"""`/api/v1/tenants`, the keys below a tenant, and changing tiers. A write answers after the local snapshot holds it."""

from typing import Annotated, Any, Literal

import msgspec
from litestar import Controller, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter

from appliance.db.base import utc_now
from appliance.domain.access.directory import Directory
from appliance.domain.access.grants import check_key_grant
from appliance.domain.access.service import check_key_spec, list_keys
from appliance.domain.access.snapshot import Admin
from appliance.domain.audit.service import Actor
from appliance.domain.slas.controller import TierView, tier_view
from appliance.domain.slas.decisions import contract_warnings
from appliance.domain.tenants.bootstrap import Store
from appliance.domain.tenants.key_service import create_tenant_key, revoke_tenant_key, rotate_tenant_key, update_tenant_key
from appliance.domain.tenants.service import create_tenant, delete_tenant, find_tenant, list_tenants, update_tenant
from appliance.domain.tenants.tier_service import create_tier, delete_tier, update_tier
from appliance.domain.tenants.views import (
    CreatedKey,
    KeyList,
    KeyPatch,
    KeyView,
    NewKey,
    NewTenant,
    Rotation,
    TenantList,
    TenantPatch,
    TenantView,
    given,
    key_view,
    tenant_view,
)
from appliance.errors import Invalid
from appliance.problems import problem_responses
from appliance.route_access import READS, WRITES

GUARDED = (401, 403, 503)
"""What any admin route may answer."""
MAX_PAGE = 1_000

Stores = NamedDependency[Store]
Directories = NamedDependency[Directory]
Actors = NamedDependency[Actor]
Callers = NamedDependency[Admin]


def _warned[View: (TenantView, TierView)](view: View, directory: Directory) -> View:
    """With what to say about all contracts as they are now."""
    contracts = (policy.committed_tpm for policy in directory.snapshot.policies.values())
    return msgspec.structs.replace(view, warnings=contract_warnings(contracts, directory.capacity.tpm))


class TenantController(Controller):
    """Tenants."""

    path = "/tenants"
    tags = ["Tenants"]

    @post(summary="Create a tenant", opt=WRITES, responses=problem_responses(*GUARDED, 409, 415))
    async def create(self, data: JSONBody[NewTenant], store: Stores, directory: Directories, actor: Actors) -> TenantView:
        """Add a tenant under an SLA tier, with overrides of single fields. 409 where the slug is taken."""
        async with store.database.write() as session:
            name = data.slug if data.name is None else data.name
            created = await create_tenant(
                session, slug=data.slug, name=name, tier=data.tier, overrides=data.overrides, trust_group=data.trust_group, actor=actor
            )
            view = tenant_view(created)
        await directory.refresh()
        return _warned(view, directory)

    @get(summary="List tenants", opt=READS, responses=problem_responses(*GUARDED))
    async def list(
        self,
        store: Stores,
        after: Annotated[str, QueryParameter(description="slugs behind this one", max_length=63)] = "",
        limit: Annotated[int, QueryParameter(ge=1, le=MAX_PAGE)] = 100,
        status: FromQuery[Literal["active", "suspended"] | None] = None,
        tier: FromQuery[str | None] = None,
        search: Annotated[str, QueryParameter(description="text in slug or name", max_length=200)] = "",
    ) -> TenantList:
        """Tenants by slug, each with its effective SLA; a page at a time."""
        async with store.database.read() as session:
            found = await list_tenants(session, after=after, limit=limit + 1, status=status, tier=tier, search=search)
            page = [tenant_view(each) for each in found[:limit]]
        return TenantList(page, next=page[-1].slug if len(found) > limit else None)

    @get("/{slug:str}", summary="Show a tenant", opt=READS, responses=problem_responses(*GUARDED, 404))
    async def show(self, slug: FromPath[str], store: Stores) -> TenantView:
        """A tenant with its effective SLA, and where each field of it comes from."""
        async with store.database.read() as session:
            return tenant_view(await find_tenant(session, slug))

    @patch("/{slug:str}", summary="Change a tenant", opt=WRITES, responses=problem_responses(*GUARDED, 404, 409, 415))
    async def update(
        self, slug: FromPath[str], data: JSONBody[TenantPatch], store: Stores, directory: Directories, actor: Actors
    ) -> TenantView:
        """Change some fields. The next request is judged by them; those in flight go on. 409 where `version` is outdated."""
        async with store.database.write() as session:
            view = tenant_view(await update_tenant(session, slug, given(data), data.version, actor))
        await directory.refresh()
        return _warned(view, directory)

    @delete("/{slug:str}", summary="Remove a tenant", opt=WRITES, responses=problem_responses(*GUARDED, 404))
    async def remove(self, slug: FromPath[str], store: Stores, directory: Directories, actor: Actors) -> None:
        """Its keys are refused from now on; its slug stays taken, its usage and audit stay."""
        async with store.database.write() as session:
            await delete_tenant(session, slug, actor)
        await directory.refresh()


class TierEditor(Controller):
    """SLA tiers."""

    path = "/tiers"
    tags = ["SLA tiers"]

    @post(summary="Create a tier", opt=WRITES, responses=problem_responses(*GUARDED, 409, 415))
    async def create(self, data: JSONBody[dict[str, Any]], store: Stores, directory: Directories, actor: Actors) -> TierView:
        """`name`, and fields of the SLA; those left out take their defaults (no limit, no target). 409 where the name is taken."""
        fields = dict(data)
        name = fields.pop("name", None)
        if not isinstance(name, str):
            raise Invalid("name is required and must be a text", param="name")
        async with store.database.write() as session:
            view = tier_view(await create_tier(session, name, fields, actor))
        await directory.refresh()
        return _warned(view, directory)

    @patch("/{name:str}", summary="Change a tier", opt=WRITES, responses=problem_responses(*GUARDED, 404, 409, 415))
    async def update(
        self, name: FromPath[str], data: JSONBody[dict[str, Any]], store: Stores, directory: Directories, actor: Actors
    ) -> TierView:
        """Fields of the SLA with their new values (null: no limit), and `version`, the one that was read, where it matters.

        Holds for all tenants under the tier from their next request on. 409 where `version` is outdated.
        """
        fields = dict(data)
        version = fields.pop("version", None)
        if version is not None and type(version) is not int:
            raise Invalid("version must be a whole number", param="version")
        async with store.database.write() as session:
            view = tier_view(await update_tier(session, name, fields, version, actor))
        await directory.refresh()
        return _warned(view, directory)

    @delete("/{name:str}", summary="Remove a tier", opt=WRITES, responses=problem_responses(*GUARDED, 404, 409))
    async def remove(self, name: FromPath[str], store: Stores, directory: Directories, actor: Actors) -> None:
        """409 while tenants are under it. Its name may be used again."""
        async with store.database.write() as session:
            await delete_tier(session, name, actor)
        await directory.refresh()


class KeyController(Controller):
    """API keys of a tenant."""

    path = "/tenants/{slug:str}/keys"
    tags = ["API keys"]

    @post(summary="Create a key", opt=WRITES, responses=problem_responses(*GUARDED, 404, 415))
    async def create(
        self, slug: FromPath[str], data: JSONBody[NewKey], store: Stores, directory: Directories, actor: Actors, caller: Callers
    ) -> CreatedKey:
        """Make a key. This answer is the only place where it is shown: only its digest is stored."""
        spec = check_key_spec(data.name, data.scopes, data.models, data.lanes, data.expires_at, utc_now(), data.limits)
        check_key_grant(caller, None, spec.scopes, spec.expires_at)
        async with store.database.write() as session:
            row, raw_key = await create_tenant_key(session, slug, spec, store.pepper, actor)
            created = CreatedKey(id=row.id, key=raw_key, tenant=slug, name=row.name, scopes=row.scopes, expires_at=row.expires_at)
        await directory.refresh()
        return created

    @get(summary="List keys", opt=READS, responses=problem_responses(*GUARDED, 404))
    async def list(
        self,
        slug: FromPath[str],
        store: Stores,
        directory: Directories,
        after: Annotated[str, QueryParameter(description="keys made after this one (id)", max_length=64)] = "",
        limit: Annotated[int, QueryParameter(ge=1, le=MAX_PAGE)] = 100,
    ) -> KeyList:
        """A tenant's keys, revoked ones too, a page at a time; of each only the first and last characters."""
        async with store.database.read() as session:
            tenant = (await find_tenant(session, slug)).tenant
            found = await list_keys(session, tenant.id, after=after, limit=limit + 1)
            page = [key_view(row, slug, directory.snapshot.grantors) for row in found[:limit]]
        return KeyList(page, next=page[-1].id if len(found) > limit else None)

    @patch("/{key_id:str}", summary="Change a key", opt=WRITES, responses=problem_responses(*GUARDED, 404, 409, 415))
    async def update(
        self,
        slug: FromPath[str],
        key_id: FromPath[str],
        data: JSONBody[KeyPatch],
        store: Stores,
        directory: Directories,
        actor: Actors,
        caller: Callers,
    ) -> KeyView:
        """Change a key's expiry or its own limits."""
        async with store.database.write() as session:
            row = await update_tenant_key(session, slug, key_id, given(data), data.version, actor, caller)
        await directory.refresh()
        return key_view(row, slug, directory.snapshot.grantors)

    @post("/{key_id:str}/rotate", summary="Replace a key", opt=WRITES, responses=problem_responses(*GUARDED, 404, 409, 415))
    async def rotate(
        self,
        slug: FromPath[str],
        key_id: FromPath[str],
        store: Stores,
        directory: Directories,
        actor: Actors,
        caller: Callers,
        data: JSONBody[Rotation | None] = None,
    ) -> CreatedKey:
        """Make another key like it; the old one still works for the grace time. Without a body: an hour."""
        grace_s = (data or Rotation()).grace_s
        async with store.database.write() as session:
            row, raw_key = await rotate_tenant_key(session, slug, key_id, grace_s, store.pepper, actor, caller)
            created = CreatedKey(id=row.id, key=raw_key, tenant=slug, name=row.name, scopes=row.scopes, expires_at=row.expires_at)
        await directory.refresh()
        return created

    @delete("/{key_id:str}", summary="Revoke a key", opt=WRITES, responses=problem_responses(*GUARDED, 404))
    async def revoke(self, slug: FromPath[str], key_id: FromPath[str], store: Stores, directory: Directories, actor: Actors) -> None:
        """Refuse a key from now on. Again is no error."""
        async with store.database.write() as session:
            await revoke_tenant_key(session, slug, key_id, actor)
        await directory.refresh()
