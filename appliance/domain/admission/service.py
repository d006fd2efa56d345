"""Tickets: a request holds one from admission to its end, and its number is what the limits count."""

from collections import Counter

from appliance.domain.admission.decisions import Admit, Occupancy, Reject, decide
from appliance.domain.admission.gate import Gate
from appliance.errors import OverOwnLimit, Unavailable
from engine.wire import TenantPolicy


class Ticket:
    """One admitted request. Every ticket is closed exactly once, by the request's one `finally`."""

    def __init__(self, admission: "Admission", tenant_id: str) -> None:
        self._admission = admission
        self._is_waiting = True
        self.tenant_id = tenant_id

    def start(self) -> None:
        """The engine began to work on it: it waits no more."""
        if self._is_waiting:
            self._is_waiting = False
            self._admission.num_waiting -= 1

    def close(self) -> None:
        self.start()
        self._admission.release(self.tenant_id)


class Admission:
    """Counts what is in the house and asks `decide`."""

    def __init__(self, gate: Gate, max_queue_depth: int) -> None:
        self.gate = gate
        self.num_waiting = 0
        """Requests admitted that the engine has not begun to work on."""
        self._max_queue_depth = max_queue_depth
        self._in_flight: Counter[str] = Counter()

    @property
    def num_in_flight(self) -> int:
        """Tickets that are out."""
        return self._in_flight.total()

    def enter(self, policy: TenantPolicy) -> Ticket:
        """A ticket for one request.

        Raises:
            OverOwnLimit: the tenant's own ceiling.
            Unavailable: warming up, draining, no engine, or the queue is full.
        """
        self.gate.require_open()
        occupancy = Occupancy(self._in_flight[policy.tenant_id], self.num_waiting)
        match decide(policy, occupancy, self._max_queue_depth):
            case Admit():
                self._in_flight[policy.tenant_id] += 1
                self.num_waiting += 1
                return Ticket(self, policy.tenant_id)
            case Reject(reason, message, retry_after_s, own_limit=True):
                raise OverOwnLimit(message, reason=reason, retry_after_s=retry_after_s)
            case Reject(_, message, retry_after_s):
                raise Unavailable(message, reason="overloaded", retry_after_s=retry_after_s)

    def release(self, tenant_id: str) -> None:
        self._in_flight[tenant_id] -= 1
        if not self._in_flight[tenant_id]:
            del self._in_flight[tenant_id]
