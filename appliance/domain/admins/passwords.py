"""Password hashing with Argon2id: off the event loop, a few at a time, so that a flood of logins costs no tenant its tail."""

import asyncio
import base64
import secrets

import argon2

from appliance.domain.admins.decisions import normal_password
from appliance.errors import Unavailable

TIME_COST = 2
MEMORY_KIB = 19 * 1024
"""OWASP's recommendation for Argon2id (Password Storage Cheat Sheet): 19 MiB, two passes, one lane."""
MAX_AT_ONCE = 2
MAX_WAITING = 16
RETRY_AFTER_S = 2.0


def nobodys_hash() -> str:
    """A hash of no known password, verified where there is no such administrator, so that both take as long; making it takes no time."""
    salt, digest = (base64.b64encode(secrets.token_bytes(size)).decode().rstrip("=") for size in (16, 32))
    return f"$argon2id$v=19$m={MEMORY_KIB},t={TIME_COST},p=1${salt}${digest}"


class Passwords:
    """Hashes and verifies. At most `MAX_AT_ONCE` hashes run, `MAX_WAITING` wait; the next one is refused with `Unavailable`."""

    def __init__(self) -> None:
        self._argon2 = argon2.PasswordHasher(time_cost=TIME_COST, memory_cost=MEMORY_KIB, parallelism=1)
        self._nobodys_hash = nobodys_hash()
        self._slots = asyncio.Semaphore(MAX_AT_ONCE)
        self._waiting = 0

    async def hash(self, password: str) -> str:
        """The hash of a password that was checked, with its salt and parameters."""
        async with self._slots:
            return await asyncio.to_thread(self._argon2.hash, password)

    async def verify(self, stored: str | None, password: str) -> bool:
        """Whether a password is the one of a hash; without a hash as much work is done, and it is not. Raises `Unavailable`."""
        if self._waiting >= MAX_WAITING:
            raise Unavailable("too many logins at once: try again in a moment", reason="login_busy", retry_after_s=RETRY_AFTER_S)
        self._waiting += 1
        try:
            async with self._slots:
                return await asyncio.to_thread(self._verify, stored or self._nobodys_hash, normal_password(password)) and stored is not None
        finally:
            self._waiting -= 1

    def is_outdated(self, stored: str) -> bool:
        """Whether a hash was made with other parameters than today's."""
        return self._argon2.check_needs_rehash(stored)

    def _verify(self, stored: str, password: str) -> bool:
        try:
            return self._argon2.verify(stored, password)
        except (argon2.exceptions.VerifyMismatchError, argon2.exceptions.InvalidHashError):
            return False
