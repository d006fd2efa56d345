"""Keys: of all tenants or of one; made (and shown once), changed, replaced with a grace time, disabled."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Annotated, Any
from urllib.parse import urlencode

from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, QueryParameter
from litestar.response import Redirect

from appliance.db.base import utc_now
from appliance.domain.access.grants import check_key_grant
from appliance.domain.access.models import ApiKey
from appliance.domain.access.principal import KEY_SCOPES, Limits
from appliance.domain.access.service import check_key_spec
from appliance.domain.admins.guard import actor_of, admin_of
from appliance.domain.tenants.key_service import (
    KeySearch,
    create_tenant_key,
    find_keys,
    find_tenant_key,
    revoke_tenant_key,
    rotate_tenant_key,
    update_tenant_key,
)
from appliance.domain.tenants.service import find_tenant
from appliance.errors import ApplianceError, Invalid
from appliance.problems import problem_of
from appliance.route_access import READS, WRITES
from appliance.ui.edits import VERSION, check_confirmed, conflict_page, edit_of
from appliance.ui.forms import Form, read_form
from appliance.ui.paging import PAGE_ROWS
from appliance.ui.parts import Ui
from appliance.ui.views import AnyRequest
from engine.wire import LANES

Uis = NamedDependency[Ui]
Text = Annotated[str, QueryParameter(max_length=200)]

GRACES = {"0": "at once", "3600": "an hour", "86400": "a day", "604800": "a week", "2592000": "30 days"}
LIMITS = ("rpm", "tpm", "tokens_per_day", "tokens_per_month")
SCOPES = tuple(scope.value for scope in KEY_SCOPES)


class KeysController(Controller):
    """`/ui/keys`."""

    path = "/keys"

    @get(opt=READS)
    async def list(
        self, request: AnyRequest, ui: Uis, search: Text = "", ended: FromQuery[bool] = False, after: Text = "", before: Text = ""
    ) -> Response[str]:
        """Keys of all tenants, newest first."""
        wanted = KeySearch(now=utc_now(), search=search.strip(), with_ended=ended)
        shown = await _table(ui, wanted, {"search": wanted.search, "ended": int(ended)}, after, before)
        return ui.views.page(request, "keys/list.html", page="keys", search=wanted.search, with_ended=ended, **shown)


class TenantKeysController(Controller):
    """`/ui/tenants/{slug}/keys`."""

    path = "/tenants/{slug:str}/keys"

    @get(opt=READS)
    async def list(
        self, request: AnyRequest, ui: Uis, slug: FromPath[str], after: Text = "", before: Text = "", done: FromQuery[str] = ""
    ) -> Response[str]:
        """Keys of the tenant, ended ones too, and the form for another one."""
        return await _tenant_page(request, ui, slug, after=after, before=before, done=done)

    @post(opt=WRITES)
    async def create(self, request: AnyRequest, ui: Uis, slug: FromPath[str]) -> Response[str]:
        """Make one. This answer is the only place where it is shown."""
        form, control = await read_form(request), ui.house.control
        try:
            expires_at = form.moment("expires_at")
            spec = check_key_spec(form.text("name"), form.all("scopes"), [], form.all("lanes"), expires_at, utc_now(), _limits_of(form))
            check_key_grant(admin_of(request), None, spec.scopes, spec.expires_at)
            async with control.store.database.write() as session:
                key, raw_key = await create_tenant_key(session, slug, spec, control.store.pepper, actor_of(request))
            await control.directory.refresh()
        except ApplianceError as error:
            return await _tenant_page(request, ui, slug, form=form, error=error)
        return _shown_once(request, ui, slug, key, raw_key)

    @get("/{key_id:str}", opt=WRITES)
    async def edit(self, request: AnyRequest, ui: Uis, slug: FromPath[str], key_id: FromPath[str]) -> Response[str]:
        """One key: the form, its replacement, its end."""
        return await _key_page(request, ui, slug, key_id)

    @post("/{key_id:str}", opt=WRITES)
    async def change(self, request: AnyRequest, ui: Uis, slug: FromPath[str], key_id: FromPath[str]) -> Response[Any]:
        """Change it."""
        form, control, path = await read_form(request), ui.house.control, f"/ui/tenants/{slug}/keys/{key_id}"
        changes: dict[str, Any] = {}
        try:
            changes = {"name": form.text("name"), "scopes": form.all("scopes"), "lanes": form.all("lanes")}
            changes |= {"expires_at": form.moment("expires_at"), **{name: form.whole(name) for name in LIMITS}}
            async with control.store.database.write() as session:
                await update_tenant_key(session, slug, key_id, changes, form.whole(VERSION), actor_of(request), admin_of(request))
            await control.directory.refresh()
        except ApplianceError as error:
            edit = edit_of(error)
            if edit is None:
                return await _key_page(request, ui, slug, key_id, form, error)
            mine = {name: value.isoformat() if isinstance(value, datetime) else value for name, value in changes.items()}
            return conflict_page(ui, request, edit, form, mine, what="this key", action=path, back=path, page="keys")
        return Redirect(f"/ui/tenants/{slug}/keys?done=saved", status_code=303)

    @post("/{key_id:str}/rotate", opt=WRITES)
    async def rotate(self, request: AnyRequest, ui: Uis, slug: FromPath[str], key_id: FromPath[str]) -> Response[str]:
        """Another key like it; the old one still works for the grace time."""
        form, control = await read_form(request), ui.house.control
        try:
            grace_s = form.number("grace_s")
            if grace_s is None:
                raise Invalid("choose how long the old key still works", param="grace_s")
            async with control.store.database.write() as session:
                key, raw_key = await rotate_tenant_key(
                    session, slug, key_id, grace_s, control.store.pepper, actor_of(request), admin_of(request)
                )
            await control.directory.refresh()
        except ApplianceError as error:
            return await _key_page(request, ui, slug, key_id, error=error)
        return _shown_once(request, ui, slug, key, raw_key, until=utc_now() + timedelta(seconds=grace_s))

    @post("/{key_id:str}/disable", opt=WRITES)
    async def disable(self, request: AnyRequest, ui: Uis, slug: FromPath[str], key_id: FromPath[str]) -> Response[Any]:
        """Refuse it from now on, for ever."""
        form, control = await read_form(request), ui.house.control
        try:
            async with control.store.database.write() as session:
                check_confirmed(form, (await find_tenant_key(session, slug, key_id)).key.name)
                await revoke_tenant_key(session, slug, key_id, actor_of(request))
            await control.directory.refresh()
        except ApplianceError as error:
            return await _key_page(request, ui, slug, key_id, error=error)
        return Redirect(f"/ui/tenants/{slug}/keys?done=disabled", status_code=303)


def _limits_of(form: Form) -> Limits:
    return Limits(**{name: form.whole(name) for name in LIMITS})


def _shown_once(request: AnyRequest, ui: Ui, slug: str, key: ApiKey, raw_key: str, until: datetime | None = None) -> Response[str]:
    """The one page that has the key."""
    base_url = f"{request.scope['scheme']}://{request.headers.get('host', '')}/v1"
    model = ui.house.telemetry.requests.model_id
    return ui.views.page(
        request, "keys/created.html", page="keys", slug=slug, key=key, raw_key=raw_key, until=until, base_url=base_url, model=model
    )


async def _table(ui: Ui, wanted: KeySearch, query: dict[str, Any], after: str, before: str) -> dict[str, Any]:
    """What the table of keys needs: a page of them, and the addresses (`query` and a key) of those beside it."""
    async with ui.house.control.store.database.read() as session:
        found = await find_keys(session, wanted, PAGE_ROWS, after=after, before=before)
    back = "?" + urlencode(query | {"before": found.keys[0].key.id}) if found.first else ""
    following = "?" + urlencode(query | {"after": found.keys[-1].key.id}) if found.end < found.total else ""
    return {"found": found, "back": back, "next": following, "now": wanted.now, "lost_scopes": _lost_scopes(ui)}


def _lost_scopes(ui: Ui) -> Callable[[ApiKey], list[str]]:
    """Of a key, what it may do no more because whoever granted it is gone, or may less now."""
    snapshot = ui.house.control.directory.snapshot
    return lambda key: sorted(snapshot.lost_scopes(key.scopes, key.granted_by))


async def _tenant_page(
    request: AnyRequest,
    ui: Ui,
    slug: str,
    *,
    after: str = "",
    before: str = "",
    done: str = "",
    form: Form | None = None,
    error: ApplianceError | None = None,
) -> Response[str]:
    async with ui.house.control.store.database.read() as session:
        tenant = (await find_tenant(session, slug)).tenant
    shown = await _table(ui, KeySearch(now=utc_now(), tenant=slug, with_ended=True), {}, after, before)
    values = {**shown, "tenant": tenant, "done": done, "error": error}
    values |= {"form": form or Form({"scopes": ("inference",)}), "scopes": SCOPES, "lanes": LANES}
    return ui.views.page(request, "keys/tenant.html", problem_of(error).status if error else 200, page="tenants", **values)


async def _key_page(
    request: AnyRequest, ui: Ui, slug: str, key_id: str, form: Form | None = None, error: ApplianceError | None = None
) -> Response[str]:
    async with ui.house.control.store.database.read() as session:
        tenant = (await find_tenant(session, slug)).tenant
        found = await find_tenant_key(session, slug, key_id)
    key, now = found.key, utc_now()
    if form is None:
        form = Form(
            {
                "name": (key.name,),
                "scopes": tuple(key.scopes),
                "lanes": tuple(key.lanes),
                "expires_at": (key.expires_at.strftime("%Y-%m-%dT%H:%M:%S") if key.expires_at else "",),
                **{name: ("" if (limit := getattr(key, name)) is None else str(limit),) for name in LIMITS},
                VERSION: (str(key.version),),
            }
        )
    values = {
        "tenant": tenant,
        "found": found,
        "form": form,
        "error": error,
        "now": now,
        "scopes": SCOPES,
        "lanes": LANES,
        "graces": GRACES,
        "lost": _lost_scopes(ui)(key),
    }
    return ui.views.page(request, "keys/edit.html", problem_of(error).status if error else 200, page="tenants", **values)
