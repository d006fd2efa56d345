"""What a tenant may be called. Pure."""

import re

from appliance.errors import Invalid

SLUG = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
RESERVED_SLUGS = frozenset({"other"})
"""`other` is the label of the tenants beyond the top ones in metrics."""
MAX_NAME_CHARS = 200
STATUSES = ("active", "suspended")


def check_slug(slug: str, param: str = "slug") -> str:
    """A slug as it stands. Raises `Invalid`: it is a label in metrics and part of URLs, so the alphabet is small."""
    if not SLUG.fullmatch(slug):
        allowed = "1 to 63 of a-z, 0-9, - and _, beginning with a letter or digit"
        raise Invalid(f"{param} is {slug[:80]!r}: use {allowed}", code="invalid_slug", param=param)
    if slug in RESERVED_SLUGS:
        raise Invalid(f"{param} {slug!r} is reserved", code="invalid_slug", param=param)
    return slug


def check_status(status: str) -> str:
    """Whether its keys are taken. A tenant is removed in another way. Raises `Invalid`."""
    if status not in STATUSES:
        raise Invalid(f"status is {status[:40]!r}; it is one of {', '.join(STATUSES)}", param="status")
    return status


def check_name(name: str) -> str:
    """A display name, trimmed. Raises `Invalid`."""
    trimmed = name.strip()
    if not trimmed or len(trimmed) > MAX_NAME_CHARS or not trimmed.isprintable():
        raise Invalid(f"name must be 1 to {MAX_NAME_CHARS} printable characters", param="name")
    return trimmed
