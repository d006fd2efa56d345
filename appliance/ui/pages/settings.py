"""Settings of the running server: log level, backups, one's own password, administrators and their tokens."""

import asyncio
from datetime import datetime
from pathlib import Path
from typing import Any

from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery
from litestar.response import Redirect

from appliance.db.backup import BackupError, back_up
from appliance.db.base import utc_now
from appliance.domain.access.principal import Role
from appliance.domain.admins.controller import session_cookie
from appliance.domain.admins.decisions import check_admin_name, check_password, role_of
from appliance.domain.admins.guard import actor_of, admin_of
from appliance.domain.admins.service import AdminChange, create_admin, delete_admin, find_admin, list_admins, update_admin
from appliance.domain.admins.token_service import create_token, list_tokens, revoke_token
from appliance.domain.audit.service import record
from appliance.errors import ApplianceError, Conflict, EditConflict, Invalid
from appliance.logs import LEVELS, Level
from appliance.problems import problem_of
from appliance.route_access import MANAGES, OWN, READS, WRITES
from appliance.settings import data_path, sqlalchemy_url
from appliance.ui.edits import VERSION, check_confirmed, conflict_page, edit_of
from appliance.ui.forms import Form, read_form
from appliance.ui.parts import Ui
from appliance.ui.views import AnyRequest

Uis = NamedDependency[Ui]
BACKUP_FOLDER = "backups"
SHOWN_BACKUPS = 20
ROLES = tuple(role.value for role in Role)


class SettingsPages(Controller):
    """`/ui/settings`."""

    path = "/settings"

    @get(opt=READS)
    async def show(self, request: AnyRequest, ui: Uis, done: FromQuery[str] = "") -> Response[str]:
        """All of it."""
        return await _page(request, ui, done=done)

    @post("/log-level", opt=WRITES)
    async def log_level(self, request: AnyRequest, ui: Uis) -> Response[Any]:
        """Of this process, until it ends."""
        form, house = await read_form(request), ui.house
        wanted: Level | None = next((level for level in LEVELS if level == form.text("level")), None)
        if wanted is None:
            return await _page(request, ui, Invalid("choose one of the levels", param="level"))
        async with house.control.store.database.write() as session:
            record(session, actor_of(request), "log_level.update", "log-level", {"level": house.log_level.name}, {"level": wanted})
        house.log_level.name = wanted
        return Redirect("/ui/settings?done=log-level", status_code=303)

    @post("/backup", opt=MANAGES)
    async def backup(self, request: AnyRequest, ui: Uis) -> Response[Any]:
        """A file beside the database: it holds digests and hashes, so it does not leave the server this way."""
        folder = data_path(ui.house.settings) / BACKUP_FOLDER
        target = folder / f"fairlane-{utc_now():%Y%m%dT%H%M%SZ}.backup"
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            await asyncio.to_thread(back_up, sqlalchemy_url(ui.house.settings), target)
        except (BackupError, OSError) as error:
            return await _page(request, ui, Conflict(str(error)))
        async with ui.house.control.store.database.write() as session:
            record(session, actor_of(request), "backup.create", "backup", None, {"file": target.name})
        return Redirect("/ui/settings?done=backup", status_code=303)

    @post("/password", opt=READS)
    async def password(self, request: AnyRequest, ui: Uis) -> Response[Any]:
        """One's own. It ends one's sessions, this one too."""
        form, control = await read_form(request), ui.house.control
        try:
            if form.secret("password") != form.secret("again"):
                raise Conflict("the two new passwords differ: type them again")
            present = form.secret("present_password")
            await control.logins.change_own_password(admin_of(request).admin_id, present, form.secret("password"), actor_of(request))
            await control.directory.refresh()
        except ApplianceError as error:
            return await _page(request, ui, error)
        return Redirect("/ui/", status_code=303, cookies=[session_cookie(request, None)])

    @post("/admins", opt=MANAGES)
    async def add_admin(self, request: AnyRequest, ui: Uis) -> Response[Any]:
        """With a password, or without one for tokens only."""
        form, control = await read_form(request), ui.house.control
        try:
            role, name, password = role_of(form.text("role")), check_admin_name(form.text("name")), form.secret("password")
            password_hash = await control.logins.passwords.hash(check_password(password, name)) if password else None
            async with control.store.database.write() as session:
                await create_admin(session, name, role, password_hash, actor_of(request))
            await control.directory.refresh()
        except ApplianceError as error:
            return await _page(request, ui, error)
        return Redirect("/ui/settings?done=admin", status_code=303)


class AdminPages(Controller):
    """`/ui/settings/admins/{admin_id}`: one administrator."""

    path = "/settings/admins/{admin_id:str}"

    @get(opt=OWN)
    async def show(self, request: AnyRequest, ui: Uis, admin_id: FromPath[str], done: FromQuery[str] = "") -> Response[str]:
        """Role, access, tokens."""
        return await _admin_page(request, ui, admin_id, done=done)

    @post(opt=MANAGES)
    async def change(self, request: AnyRequest, ui: Uis, admin_id: FromPath[str]) -> Response[Any]:
        """Role, disabled or not, another password; its sessions end."""
        form, control, path = await read_form(request), ui.house.control, f"/ui/settings/admins/{admin_id}"
        try:
            role, disabled, password = role_of(form.text("role")), form.flag("disabled"), form.secret("password")
            async with control.store.database.read() as session:
                name = (await find_admin(session, admin_id)).name
            password_hash = await control.logins.passwords.hash(check_password(password, name)) if password else None
            async with control.store.database.write() as session:
                change = AdminChange(role, disabled, password_hash)
                await update_admin(session, admin_id, change, form.whole(VERSION), actor_of(request))
            await control.directory.refresh()
        except ApplianceError as error:
            edit = edit_of(error)
            if edit is None:
                return await _admin_page(request, ui, admin_id, error)
            return _conflict(ui, request, edit, form, path)
        return Redirect(f"{path}?done=saved", status_code=303)

    @post("/delete", opt=MANAGES)
    async def remove(self, request: AnyRequest, ui: Uis, admin_id: FromPath[str]) -> Response[Any]:
        """With all sessions and tokens."""
        form, control = await read_form(request), ui.house.control
        try:
            async with control.store.database.write() as session:
                check_confirmed(form, (await find_admin(session, admin_id)).name)
                await delete_admin(session, admin_id, actor_of(request))
            await control.directory.refresh()
        except ApplianceError as error:
            return await _admin_page(request, ui, admin_id, error)
        return Redirect("/ui/settings?done=removed", status_code=303)

    @post("/tokens", opt=OWN)
    async def add_token(self, request: AnyRequest, ui: Uis, admin_id: FromPath[str]) -> Response[str]:
        """For programs; shown once."""
        form, control = await read_form(request), ui.house.control
        try:
            role, expires_at = role_of(form.text("role")), form.moment("expires_at")
            async with control.store.database.write() as session:
                _, raw_token = await create_token(
                    session,
                    admin_id,
                    name=form.text("name"),
                    role=role,
                    expires_at=expires_at,
                    maker=admin_of(request),
                    pepper=control.store.pepper,
                    actor=actor_of(request),
                )
            await control.directory.refresh()
        except ApplianceError as error:
            return await _admin_page(request, ui, admin_id, error)
        return await _admin_page(request, ui, admin_id, raw_token=raw_token)

    @post("/tokens/{token_id:str}/revoke", opt=OWN)
    async def revoke(self, request: AnyRequest, ui: Uis, admin_id: FromPath[str], token_id: FromPath[str]) -> Response[Any]:
        """Refuse it from now on."""
        control = ui.house.control
        async with control.store.database.write() as session:
            await revoke_token(session, admin_id, token_id, actor_of(request), admin_of(request))
        await control.directory.refresh()
        return Redirect(f"/ui/settings/admins/{admin_id}?done=revoked", status_code=303)


async def _page(request: AnyRequest, ui: Ui, error: ApplianceError | None = None, done: str = "") -> Response[str]:
    visitor = ui.doorkeeper.visitor(request)
    async with ui.house.control.store.database.read() as session:
        admins = await list_admins(session) if visitor.may_manage else []
    backups = await asyncio.to_thread(_backups, data_path(ui.house.settings) / BACKUP_FOLDER) if visitor.may_manage else []
    values = {"admins": admins, "backups": backups, "level": ui.house.log_level.name, "levels": LEVELS, "roles": ROLES}
    values |= {"error": error, "done": done, "own_id": admin_of(request).admin_id}
    return ui.views.page(request, "settings/show.html", problem_of(error).status if error else 200, page="settings", **values)


async def _admin_page(
    request: AnyRequest, ui: Ui, admin_id: str, error: ApplianceError | None = None, done: str = "", raw_token: str = ""
) -> Response[str]:
    async with ui.house.control.store.database.read() as session:
        admin, tokens = await find_admin(session, admin_id), await list_tokens(session, admin_id)
    scopes = Role(admin.role).scopes & admin_of(request).scopes
    token_roles = [role.value for role in Role if role.scopes <= scopes]  # a token does no more than who it is for and who makes it
    values = {
        "admin": admin,
        "tokens": tokens,
        "roles": ROLES,
        "token_roles": token_roles,
        "error": error,
        "done": done,
        "raw_token": raw_token,
        "now": utc_now(),
    }
    return ui.views.page(request, "settings/admin.html", problem_of(error).status if error else 200, page="settings", **values)


def _conflict(ui: Ui, request: AnyRequest, edit: EditConflict, form: Form, path: str) -> Response[str]:
    """Two who changed one administrator. A new password is not written into a page: it is to be typed again."""
    mine: dict[str, Any] = {"role": form.text("role"), "disabled": form.flag("disabled")}
    present = {"role": edit.present["role"], "disabled": edit.present["disabled_at"] is not None}
    if form.secret("password"):
        mine["password"], present["password"] = "a new one: type it again afterwards", "as it is"
    shown = Form({name: values for name, values in form.values.items() if name != "password"})
    what = "this administrator"
    return conflict_page(ui, request, edit, shown, mine, present, what=what, action=path, back=path, page="settings")


def _backups(folder: Path) -> list[tuple[str, int, datetime]]:
    """Name, bytes and time of the newest ones."""
    found = sorted(folder.glob("*.backup"), reverse=True)[:SHOWN_BACKUPS] if folder.is_dir() else []
    return [(path.name, path.stat().st_size, datetime.fromtimestamp(path.stat().st_mtime).astimezone()) for path in found]
