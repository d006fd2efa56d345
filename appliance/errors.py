"""Errors a request can end with, as a tree. They know nothing of HTTP: `appliance.problems` maps each to a status.

ApplianceError(message, code, param)
├── Invalid                 the request can never succeed as it stands (400)
├── Unauthenticated         no key, or not a valid one (401)
├── Forbidden               the key's scope, tenant, model or lane does not allow it (403)
├── NotFound                no such model, tenant, key, request (404)
├── Conflict                exists already, or was changed by somebody else (409)
├── BodyTooSlow             the body did not arrive in time (408)
├── TooLarge                body over the limit (413)
├── UnsupportedMedia        wrong content type (415)
├── EndedByOperator         an administrator ended this request, which was running (503, x-should-retry: false)
├── OverOwnLimit            the tenant's own ceiling; `retry_after_s` (429 rate_limit_exceeded)
│   └── OverBudget          the token budget is spent (429 insufficient_quota, x-should-retry: false)
├── Unavailable             we are short; `reason` is predicted_late or queue_full (code `overloaded`), warming_up, draining,
│                           queue_timeout, deadline_exceeded, engine_down (503)
└── EngineFailed            the engine failed this request after it was accepted, and lives (500)
"""

from dataclasses import dataclass
from typing import Any


class ApplianceError(Exception):
    """Root. `message` is for people and says what to do; `code` is for programs; `param` names the field at fault."""

    code = "internal_error"

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or type(self).code
        self.param = param


@dataclass(frozen=True, slots=True)
class Fault:
    """One of several things that are wrong: where, as a path joined by dots (`tenants.acme.overrides.rpm`), and what."""

    param: str
    message: str


class Invalid(ApplianceError):
    """`faults` are all that is wrong, where more than one thing is looked for; the message then tells them all."""

    code = "invalid_value"

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None, faults: tuple[Fault, ...] = ()) -> None:
        super().__init__(message, code=code, param=param)
        self.faults = faults


class Unauthenticated(ApplianceError):
    code = "invalid_api_key"


class Forbidden(ApplianceError):
    """`tenant_id` and `key_id` tell whose valid key was refused, for the books; empty where it was none."""

    code = "forbidden"

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None, tenant_id: str = "", key_id: str = "") -> None:
        super().__init__(message, code=code, param=param)
        self.tenant_id = tenant_id
        self.key_id = key_id


class NotFound(ApplianceError):
    code = "not_found"


@dataclass(frozen=True, slots=True)
class EditConflict:
    """Two editors of one thing: the version the second one read, and what the thing is now."""

    given_version: int
    present_version: int
    present: dict[str, Any]


class Conflict(ApplianceError):
    """`edit` tells of two editors; None where something exists already."""

    code = "conflict"

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None, edit: EditConflict | None = None) -> None:
        super().__init__(message, code=code, param=param)
        self.edit = edit


class BodyTooSlow(ApplianceError):
    code = "request_timeout"


class TooLarge(ApplianceError):
    code = "request_too_large"


class UnsupportedMedia(ApplianceError):
    code = "unsupported_media_type"


class EndedByOperator(ApplianceError):
    code = "cancelled_by_operator"


class OverOwnLimit(ApplianceError):
    code = "rate_limit_exceeded"

    def __init__(self, message: str, *, reason: str, retry_after_s: float, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.reason = reason
        self.retry_after_s = retry_after_s


class OverBudget(OverOwnLimit):
    code = "insufficient_quota"


class Unavailable(ApplianceError):
    """`reason` is also the `code`, where none is given."""

    def __init__(self, message: str, *, reason: str, retry_after_s: float, code: str | None = None) -> None:
        super().__init__(message, code=code or reason)
        self.reason = reason
        self.retry_after_s = retry_after_s


class EngineFailed(ApplianceError):
    code = "engine_error"
