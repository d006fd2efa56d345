"""API keys as text: made, digested, shown. A key is 160 random bits, so a fast digest is enough (design, section 12)."""

import hmac
import secrets

KEY_PREFIX = "fl-"
ADMIN_TOKEN_PREFIX = "fl-admin-"
SETUP_TOKEN_PREFIX = "fl-setup-"
MAX_KEY_CHARS = 512
"""A longer bearer token is nobody's key and is refused before it is digested."""


def new_key(prefix: str = KEY_PREFIX) -> str:
    """A fresh key. It is shown once; only its digest is kept."""
    return prefix + secrets.token_hex(20)


def digest_key(raw_key: str, pepper: bytes) -> bytes:
    """HMAC-SHA-256 of a key under the installation's pepper, 32 bytes."""
    return hmac.digest(pepper, raw_key.encode(errors="surrogateescape"), "sha256")


def visible_prefix(raw_key: str) -> str:
    """What may be shown of a key's beginning."""
    return raw_key[:6]


def last4(raw_key: str) -> str:
    """What may be shown of a key's end."""
    return raw_key[-4:]


def masked(raw_key: str) -> str:
    """A key as messages and logs may show it; short ones not at all."""
    printable = "".join(char if char.isprintable() else "?" for char in raw_key)
    return f"{printable[:6]}...{printable[-4:]}" if 16 <= len(raw_key) <= MAX_KEY_CHARS else "(hidden)"


def bearer(authorization: str | None) -> str | None:
    """The token of an `Authorization: Bearer` header; None where there is none."""
    scheme, _, token = (authorization or "").strip().partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None
