"""`/api/v1/login`, `/logout`, `/me`, `/setup`, `/admins` and the tokens below an administrator."""

from typing import Any

from litestar import Controller, Request, Response, delete, get, patch, post
from litestar.datastructures import Cookie
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody

from appliance.db.database import Database
from appliance.domain.access.directory import Directory
from appliance.domain.admins.decisions import check_admin_name, check_password, role_of
from appliance.domain.admins.guard import SESSION_STATE, Gatekeeper, admin_of, source_of
from appliance.domain.admins.login import LoginService
from appliance.domain.admins.service import AdminChange, create_admin, delete_admin, find_admin, list_admins, update_admin
from appliance.domain.admins.sessions import COOKIE, csrf_token
from appliance.domain.admins.token_service import create_token, list_tokens, revoke_token
from appliance.domain.admins.views import (
    AdminList,
    AdminPatch,
    AdminView,
    CreatedToken,
    LoggedInView,
    Login,
    Me,
    NewAdmin,
    NewToken,
    OwnPassword,
    Setup,
    TokenList,
    admin_view,
    token_view,
)
from appliance.domain.audit.service import Actor
from appliance.problems import REQUEST_ID_STATE, problem_responses
from appliance.route_access import MANAGES, OWN, PUBLIC, READS

GUARDED = (401, 403, 503)

AnyRequest = Request[Any, Any, Any]
Logins = NamedDependency[LoginService]
Databases = NamedDependency[Database]
Directories = NamedDependency[Directory]
Actors = NamedDependency[Actor]


class SessionController(Controller):
    """Sessions."""

    tags = ["Sessions"]

    @post("/login", summary="Log in", opt=PUBLIC, security=[], status_code=200, responses=problem_responses(401, 415, 429, 503))
    async def login(self, request: AnyRequest, data: JSONBody[Login], logins: Logins) -> Response[LoggedInView]:
        """Begin a session: an HttpOnly cookie, and the `csrf_token` that changes need beside it. Programs use tokens instead."""
        begun = await logins.login(data.name, data.password, source_of(request), _request_id(request))
        answer = LoggedInView(admin=admin_view(begun.admin), csrf_token=begun.csrf_token)
        return Response(answer, cookies=[session_cookie(request, begun.session_id)], headers={"cache-control": "no-store"})

    @post("/logout", summary="Log out", opt=READS, status_code=204, responses=problem_responses(*GUARDED, 415))
    async def logout(self, request: AnyRequest, gatekeeper: NamedDependency[Gatekeeper]) -> Response[None]:
        """End the session. With a token nothing ends: it would have to be revoked."""
        session_id = request.scope["state"].get(SESSION_STATE)
        if session_id:
            await gatekeeper.end_session(session_id)
        return Response(None, cookies=[session_cookie(request, None)])

    @get("/me", summary="Who am I?", opt=READS, responses=problem_responses(*GUARDED))
    async def me(self, request: AnyRequest, logins: Logins) -> Response[Me]:
        """The caller, what it may do, and the session's `csrf_token`."""
        admin, session_id = admin_of(request), request.scope["state"].get(SESSION_STATE)
        answer = Me(
            actor=admin.actor,
            admin_id=admin.admin_id or None,
            scopes=sorted(admin.scopes),
            csrf_token=csrf_token(session_id, logins.pepper) if session_id else None,
        )
        return Response(answer, headers={"cache-control": "no-store"})

    @post("/me/password", summary="Change my password", opt=READS, status_code=204, responses=problem_responses(*GUARDED, 415, 429))
    async def password(
        self, request: AnyRequest, data: JSONBody[OwnPassword], logins: Logins, directory: Directories, actor: Actors
    ) -> Response[None]:
        """The present password is asked for again. All my sessions end, this one too."""
        await logins.change_own_password(admin_of(request).admin_id, data.present_password, data.password, actor)
        await directory.refresh()
        return Response(None, cookies=[session_cookie(request, None)])

    @post("/setup", summary="Make the first owner", opt=PUBLIC, security=[], responses=problem_responses(401, 409, 415, 429, 503))
    async def setup(self, request: AnyRequest, data: JSONBody[Setup], logins: Logins, directory: Directories) -> AdminView:
        """With the one-time token that the first start shows. 409 once there is an owner."""
        owner = await logins.set_up(data.token, data.name, data.password, source_of(request), _request_id(request))
        await directory.refresh()
        return admin_view(owner)


class AdminController(Controller):
    """Administrators."""

    path = "/admins"
    tags = ["Administrators"]

    @get(summary="List administrators", opt=MANAGES, responses=problem_responses(*GUARDED))
    async def list(self, database: Databases) -> AdminList:
        """All of them, by name."""
        async with database.read() as session:
            return AdminList([admin_view(row) for row in await list_admins(session)])

    @post(summary="Create an administrator", opt=MANAGES, responses=problem_responses(*GUARDED, 409, 415))
    async def create(self, data: JSONBody[NewAdmin], logins: Logins, directory: Directories, actor: Actors) -> AdminView:
        """With a password to log in, or without one for tokens only. 409 where the name is taken."""
        role, name = role_of(data.role), check_admin_name(data.name)
        password_hash = None if data.password is None else await logins.passwords.hash(check_password(data.password, name))
        async with logins.database.write() as session:
            view = admin_view(await create_admin(session, name, role, password_hash, actor))
        await directory.refresh()
        return view

    @get("/{admin_id:str}", summary="Show an administrator", opt=OWN, responses=problem_responses(*GUARDED, 404))
    async def show(self, admin_id: FromPath[str], database: Databases) -> AdminView:
        """Oneself, or for owners anyone."""
        async with database.read() as session:
            return admin_view(await find_admin(session, admin_id))

    @patch("/{admin_id:str}", summary="Change an administrator", opt=MANAGES, responses=problem_responses(*GUARDED, 404, 409, 415))
    async def update(
        self, admin_id: FromPath[str], data: JSONBody[AdminPatch], logins: Logins, directory: Directories, actor: Actors
    ) -> AdminView:
        """Role, password, disabled or not; its sessions end. 409 where `version` is outdated, or for the last owner."""
        role = None if data.role is None else role_of(data.role)
        async with logins.database.read() as session:
            name = (await find_admin(session, admin_id)).name
        password_hash = None if data.password is None else await logins.passwords.hash(check_password(data.password, name))
        change = AdminChange(role, data.disabled, password_hash)
        async with logins.database.write() as session:
            view = admin_view(await update_admin(session, admin_id, change, data.version, actor))
        await directory.refresh()
        return view

    @delete("/{admin_id:str}", summary="Remove an administrator", opt=MANAGES, responses=problem_responses(*GUARDED, 404, 409))
    async def remove(self, admin_id: FromPath[str], database: Databases, directory: Directories, actor: Actors) -> None:
        """With all its sessions and tokens; the audit stays. 409 for the last owner."""
        async with database.write() as session:
            await delete_admin(session, admin_id, actor)
        await directory.refresh()


class AdminTokenController(Controller):
    """Tokens of an administrator: its own, or for owners anyone's."""

    path = "/admins/{admin_id:str}/tokens"
    tags = ["Administrators"]

    @get(summary="List tokens", opt=OWN, responses=problem_responses(*GUARDED, 404))
    async def list(self, admin_id: FromPath[str], database: Databases) -> TokenList:
        """Revoked ones too; of each only the first and last characters."""
        async with database.read() as session:
            return TokenList([token_view(row) for row in await list_tokens(session, admin_id)])

    @post(summary="Create a token", opt=OWN, responses=problem_responses(*GUARDED, 404, 409, 415))
    async def create(
        self, request: AnyRequest, admin_id: FromPath[str], data: JSONBody[NewToken], logins: Logins, directory: Directories, actor: Actors
    ) -> CreatedToken:
        """This answer is the only place where it is shown. It may do no more than its administrator, nor than who makes it."""
        role = None if data.role is None else role_of(data.role)
        async with logins.database.write() as session:
            row, raw_token = await create_token(
                session,
                admin_id,
                name=data.name,
                role=role,
                expires_at=data.expires_at,
                maker=admin_of(request),
                pepper=logins.pepper,
                actor=actor,
            )
        await directory.refresh()
        return CreatedToken(id=row.id, token=raw_token, name=row.name, role=row.role, expires_at=row.expires_at)

    @delete("/{token_id:str}", summary="Revoke a token", opt=OWN, responses=problem_responses(*GUARDED, 404))
    async def revoke(
        self,
        request: AnyRequest,
        admin_id: FromPath[str],
        token_id: FromPath[str],
        database: Databases,
        directory: Directories,
        actor: Actors,
    ) -> None:
        """Refuse a token from now on. Again is no error."""
        async with database.write() as session:
            await revoke_token(session, admin_id, token_id, actor, admin_of(request))
        await directory.refresh()


def session_cookie(request: AnyRequest, session_id: str | None) -> Cookie:
    """The cookie of a session; None takes it away. Without an age it goes when the browser closes; its end is the database's matter."""
    return Cookie(
        key=COOKIE,
        value=session_id or "",
        path="/",
        httponly=True,
        samesite="lax",
        secure=request.scope["scheme"] == "https",
        max_age=None if session_id else 0,
    )


def _request_id(request: AnyRequest) -> str:
    return request.scope["state"].get(REQUEST_ID_STATE, "")
