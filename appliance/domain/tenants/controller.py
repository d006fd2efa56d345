"""`/api/v1/tenants` and the keys below a tenant. A write answers after the local snapshot holds it."""

from litestar import Controller, delete, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody

from appliance.db.base import utc_now
from appliance.domain.access.directory import Directory
from appliance.domain.access.service import check_key_spec, list_keys
from appliance.domain.tenants.bootstrap import Store
from appliance.domain.tenants.service import create_tenant, create_tenant_key, find_tenant, list_tenants, revoke_tenant_key
from appliance.domain.tenants.views import CreatedKey, KeyList, NewKey, NewTenant, TenantList, TenantView, key_view, tenant_view
from appliance.problems import problem_responses

GUARDED = (401, 403, 503)
"""What any admin route may answer."""


class TenantController(Controller):
    """Tenants."""

    path = "/tenants"
    tags = ["Tenants"]

    @post(summary="Create a tenant", responses=problem_responses(*GUARDED, 409, 415))
    async def create(self, data: JSONBody[NewTenant], store: NamedDependency[Store], directory: NamedDependency[Directory]) -> TenantView:
        """Add a tenant under an SLA tier, with overrides of single fields. 409 where the slug is taken."""
        async with store.database.write() as session:
            name = data.slug if data.name is None else data.name
            created = await create_tenant(
                session, slug=data.slug, name=name, tier=data.tier, overrides=data.overrides, trust_group=data.trust_group
            )
            view = tenant_view(created)
        await directory.refresh()
        return view

    @get(summary="List tenants", responses=problem_responses(*GUARDED))
    async def list(self, store: NamedDependency[Store]) -> TenantList:
        """All tenants by slug, each with its effective SLA."""
        async with store.database.read() as session:
            return TenantList([tenant_view(found) for found in await list_tenants(session)])

    @get("/{slug:str}", summary="Show a tenant", responses=problem_responses(*GUARDED, 404))
    async def show(self, slug: FromPath[str], store: NamedDependency[Store]) -> TenantView:
        async with store.database.read() as session:
            return tenant_view(await find_tenant(session, slug))


class KeyController(Controller):
    """API keys of a tenant."""

    path = "/tenants/{slug:str}/keys"
    tags = ["API keys"]

    @post(summary="Create a key", responses=problem_responses(*GUARDED, 404, 415))
    async def create(
        self, slug: FromPath[str], data: JSONBody[NewKey], store: NamedDependency[Store], directory: NamedDependency[Directory]
    ) -> CreatedKey:
        """Make a key. This answer is the only place where it is shown: only its digest is stored."""
        spec = check_key_spec(data.name, data.scopes, data.models, data.lanes, data.expires_at, utc_now(), data.limits)
        async with store.database.write() as session:
            row, raw_key = await create_tenant_key(session, slug, spec, store.pepper)
            created = CreatedKey(id=row.id, key=raw_key, tenant=slug, name=row.name, scopes=row.scopes, expires_at=row.expires_at)
        await directory.refresh()
        return created

    @get(summary="List keys", responses=problem_responses(*GUARDED, 404))
    async def list(self, slug: FromPath[str], store: NamedDependency[Store]) -> KeyList:
        """A tenant's keys, revoked ones too; of each only the first and last characters."""
        async with store.database.read() as session:
            tenant = (await find_tenant(session, slug)).tenant
            return KeyList([key_view(row, slug) for row in await list_keys(session, tenant.id)])

    @delete("/{key_id:str}", summary="Revoke a key", responses=problem_responses(*GUARDED, 404))
    async def revoke(
        self, slug: FromPath[str], key_id: FromPath[str], store: NamedDependency[Store], directory: NamedDependency[Directory]
    ) -> None:
        """Refuse a key from now on. Again is no error."""
        async with store.database.write() as session:
            await revoke_tenant_key(session, slug, key_id)
        await directory.refresh()
