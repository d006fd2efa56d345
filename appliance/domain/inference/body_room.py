"""Room for long bodies that are read before admission: of each tenant some at a time, so that no client fills the memory with them.

Who waits is not read: its bytes stay in the kernel's buffers, and with its client.
"""

from asyncio import Future, get_running_loop
from collections import Counter, deque
from dataclasses import dataclass

from appliance.domain.inference.body_bounds import LARGE_BODY_BYTES

BODIES_AT_ONCE = 32
"""Bodies of the greatest length that are held at once, of all tenants; one of each is, however many the others have,"""
TENANT_BODIES_AT_ONCE = 8
"""and so many of one tenant."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    num_bytes: int
    room: Future[None]
    """Done: it has it."""


class BodyRoom:
    """Used by the event loop only."""

    def __init__(self, max_body_bytes: int) -> None:
        """`max_body_bytes`: no body is longer."""
        self._max_body_bytes = max_body_bytes
        self._held: Counter[str] = Counter()
        """Bytes, by tenant."""
        self._waiting: dict[str, deque[_Waiting]] = {}
        """First come, first served within a tenant; tenants by turns."""

    @property
    def held_bytes(self) -> int:
        """Of all tenants."""
        return self._held.total()

    def bytes_of(self, declared: int | None) -> int:
        """What a body takes of the room: nothing where it is short. One whose length is not declared may have the greatest."""
        num_bytes = self._max_body_bytes if declared is None else declared
        return num_bytes if LARGE_BODY_BYTES < num_bytes <= self._max_body_bytes else 0  # what is too long is not read

    def ask(self, tenant_id: str, num_bytes: int) -> Future[None]:
        """Done as soon as there is room, which is taken then; `leave` gives it back, or the place in the queue."""
        waiting = _Waiting(num_bytes, get_running_loop().create_future())
        self._waiting.setdefault(tenant_id, deque()).append(waiting)
        self._let_in()
        return waiting.room

    def leave(self, tenant_id: str, num_bytes: int, room: Future[None]) -> None:
        """Whoever asked is done with it, or waits no more."""
        if room.done() and not room.cancelled():
            self._held[tenant_id] -= num_bytes
            if not self._held[tenant_id]:
                del self._held[tenant_id]
        room.cancel()
        self._let_in()

    def _let_in(self) -> None:
        """One of each tenant at a time, as long as there is room."""
        asking = deque(self._waiting)
        while asking:
            tenant_id = asking.popleft()
            queue = self._waiting[tenant_id]
            while queue and queue[0].room.cancelled():
                queue.popleft()
            if not queue:
                del self._waiting[tenant_id]
            elif self._fits(tenant_id, queue[0].num_bytes):
                first = queue.popleft()
                self._held[tenant_id] += first.num_bytes
                first.room.set_result(None)
                asking.append(tenant_id)
                self._waiting[tenant_id] = self._waiting.pop(tenant_id)  # the others go first next time

    def _fits(self, tenant_id: str, num_bytes: int) -> bool:
        own = self._held[tenant_id]
        of_tenant, of_all = TENANT_BODIES_AT_ONCE * self._max_body_bytes, BODIES_AT_ONCE * self._max_body_bytes
        return not own or (own + num_bytes <= of_tenant and self.held_bytes + num_bytes <= of_all)
