"""Whose long text is made tokens next: of each tenant one at a time, so that nobody's flood takes all worker threads, and the cores
that the engine computes on. Texts come before admission, and who is refused for their length pays nothing for them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from appliance.text.tokenizer import LONG_TEXT_CHARS


class TextTurns:
    """Used by the event loop only."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Of tenants that read a long text now."""

    @asynccontextmanager
    async def take(self, tenant_id: str, num_bytes: int) -> AsyncIterator[None]:
        """Wait for the tenant's turn; a short body, whose text needs no thread, has one at once."""
        if num_bytes <= LONG_TEXT_CHARS:
            yield
            return
        lock = self._locks.get(tenant_id)
        if lock is None:
            lock = self._locks[tenant_id] = asyncio.Lock()
        async with lock:
            yield
