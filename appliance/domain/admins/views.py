"""Administrators, sessions and tokens as the API takes and shows them."""

from datetime import datetime
from typing import Annotated

import msgspec

from appliance.domain.admins.models import AdminToken, AdminUser
from appliance.settings import MAX_PASSWORD_CHARS, MIN_PASSWORD_CHARS

Name = Annotated[str, msgspec.Meta(max_length=64, description="1 to 63 of a-z, 0-9, -, _, . and @", examples=["alice"])]
Password = Annotated[str, msgspec.Meta(max_length=MAX_PASSWORD_CHARS)]
NewPassword = Annotated[
    str, msgspec.Meta(max_length=MAX_PASSWORD_CHARS, description=f"{MIN_PASSWORD_CHARS} to {MAX_PASSWORD_CHARS} characters")
]
RoleName = Annotated[
    str, msgspec.Meta(description="viewer reads; operator changes tenants, tiers and keys; owner manages administrators too")
]


class Login(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /login`."""

    name: Name
    password: Password


class Setup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /setup`."""

    token: Annotated[str, msgspec.Meta(max_length=512, description="the one-time token shown at the first start")]
    name: Name
    password: NewPassword


class OwnPassword(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /me/password`."""

    present_password: Password
    password: NewPassword


class Me(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks. `admin_id` is null for the bootstrap token and for keys."""

    actor: str
    admin_id: str | None
    scopes: list[str]
    csrf_token: str | None
    """With a session: what the header `x-csrf-token` must hold in every request that changes something."""


class AdminView(msgspec.Struct, frozen=True, kw_only=True):
    """An administrator."""

    id: str
    name: str
    role: str
    has_password: bool
    disabled_at: datetime | None
    version: int
    created_at: datetime


class LoggedInView(msgspec.Struct, frozen=True, kw_only=True):
    """A session began; its id is in the cookie."""

    admin: AdminView
    csrf_token: str


class AdminList(msgspec.Struct, frozen=True):
    admins: list[AdminView]


class NewAdmin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /admins`."""

    name: Name
    role: RoleName = "viewer"
    password: Annotated[NewPassword | None, msgspec.Meta(description="null: no login, tokens only")] = None


class AdminPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of `PATCH /admins/{id}`: what is left out or null stays as it is."""

    version: Annotated[int | None, msgspec.Meta(description="the version that was read; 409 where it is no longer the present one")] = None
    role: RoleName | None = None
    disabled: bool | None = None
    password: NewPassword | None = None


class NewToken(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /admins/{id}/tokens`."""

    name: Annotated[str, msgspec.Meta(description="what the token is for")]
    role: Annotated[RoleName | None, msgspec.Meta(description="null: the administrator's")] = None
    expires_at: Annotated[datetime | None, msgspec.Meta(description="refused from then on; null: never")] = None


class TokenView(msgspec.Struct, frozen=True, kw_only=True):
    """A token as it may be shown again."""

    id: str
    name: str
    role: str
    prefix: str
    last4: str
    expires_at: datetime | None
    disabled_at: datetime | None
    created_at: datetime


class CreatedToken(msgspec.Struct, frozen=True, kw_only=True):
    """The one answer that holds the token. Store it: it is not shown again."""

    id: str
    token: str
    name: str
    role: str
    expires_at: datetime | None


class TokenList(msgspec.Struct, frozen=True):
    tokens: list[TokenView]


def admin_view(row: AdminUser) -> AdminView:
    return AdminView(
        id=row.id,
        name=row.name,
        role=row.role,
        has_password=row.password_hash is not None,
        disabled_at=row.disabled_at,
        version=row.version,
        created_at=row.created_at,
    )


def token_view(row: AdminToken) -> TokenView:
    return TokenView(**{name: getattr(row, name) for name in TokenView.__struct_fields__})
