"""What a browser's form says. Forms are small, URL-encoded, and read as text: what the text means is for the domain to say."""

import contextlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl

from litestar import Request
from litestar.connection import ASGIConnection

from appliance.errors import Invalid, TooLarge, UnsupportedMedia

CSRF_FIELD = "csrf_token"
FORM_STATE = "ui_form"
"""Key of the ASGI scope's `state`: the form, read once."""
MAX_FORM_BYTES = 256 * 1024
MEDIA_TYPE = "application/x-www-form-urlencoded"


@dataclass(frozen=True, slots=True)
class Form:
    """Values by field, in the order in which they were sent. An absent field is empty."""

    values: Mapping[str, tuple[str, ...]]

    def text(self, name: str) -> str:
        """The last value of a field, trimmed."""
        return self.values.get(name, ("",))[-1].strip()

    def secret(self, name: str) -> str:
        """As it was typed: a password may begin or end with a space."""
        return self.values.get(name, ("",))[-1]

    def all(self, name: str) -> list[str]:
        """All values of a field, as of boxes that may be ticked together."""
        return [value for value in self.values.get(name, ()) if value]

    def flag(self, name: str) -> bool:
        """Whether a box is ticked."""
        return bool(self.text(name))

    def whole(self, name: str) -> int | None:
        """A whole number, thousands separated by commas or spaces or not at all; None where nothing is typed. Raises `Invalid`."""
        text = self.text(name).replace(",", "").replace(" ", "").replace("_", "")
        if not text:
            return None
        try:
            return int(text)
        except ValueError as error:
            raise Invalid(f"{name} is {self.text(name)[:40]!r}: write a whole number, or leave it empty", param=name) from error

    def number(self, name: str) -> float | None:
        """A number; None where nothing is typed. Raises `Invalid`."""
        text = self.text(name)
        if not text:
            return None
        with contextlib.suppress(ValueError):
            number = float(text.replace(",", ""))
            if math.isfinite(number):
                return number
        raise Invalid(f"{name} is {text[:40]!r}: write a number, or leave it empty", param=name)

    def moment(self, name: str) -> datetime | None:
        """A time, of UTC where it names no zone; None where nothing is typed. Raises `Invalid`."""
        text = self.text(name)
        if not text:
            return None
        try:
            time = datetime.fromisoformat(text)
            return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
        except (ValueError, OverflowError) as error:
            raise Invalid(f"{name} is {text[:40]!r}: write a time like 2030-01-31T12:00", param=name) from error


def one_of(text: str, known: Iterable[str]) -> str:
    """A choice; empty where it is none of them."""
    return text if text in known else ""


async def read_form(connection: ASGIConnection[Any, Any, Any, Any]) -> Form:
    """The request's form; read at the first call. Raises `UnsupportedMedia`, `TooLarge` or `Invalid`."""
    state = connection.scope.setdefault("state", {})
    if FORM_STATE not in state:
        media = connection.headers.get("content-type", MEDIA_TYPE).partition(";")[0].strip().lower()
        if media != MEDIA_TYPE:
            raise UnsupportedMedia(f"the form's content type is {media[:80]!r}: send {MEDIA_TYPE}", param="content-type")
        state[FORM_STATE] = parse_form(await _body(connection))
    return state[FORM_STATE]


def parse_form(body: bytes) -> Form:
    """A form's text. Raises `Invalid`."""
    try:
        pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=1_000, errors="strict")
    except ValueError as error:
        raise Invalid("the form can not be read: load the page again and repeat what you did") from error
    values: dict[str, tuple[str, ...]] = {}
    for name, value in pairs:
        values[name] = (*values.get(name, ()), value)
    return Form(values)


async def _body(connection: ASGIConnection[Any, Any, Any, Any]) -> bytes:
    declared = connection.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > MAX_FORM_BYTES:
        raise TooLarge(f"the form has more than {MAX_FORM_BYTES} bytes")
    request: Request[Any, Any, Any] = Request(connection.scope, connection.receive)
    body = await request.body()
    if len(body) > MAX_FORM_BYTES:
        raise TooLarge(f"the form has more than {MAX_FORM_BYTES} bytes")
    return body
