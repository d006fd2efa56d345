"""How quickly a tenant may be refused. Pure: times and turns go in, facts come out.

A refusal costs its tenant nothing and this process some tenths of a millisecond, more for a long body: a client that sends thousands a
second takes the event loop, and with it everybody's tokens. So a request takes a turn while it is read and judged. Who is admitted gives
it back; a refusal leaves it as a debt that is paid off at a rate (a generic cell rate algorithm, seen as a bucket that leaks).
"""

from dataclasses import dataclass

BURST_S = 2.0
"""A tenant has the turns of so many seconds,"""
LEAST_BURST = 20.0
"""and so many at least: requests that are not refused come together, too."""
LONGEST_WAIT_S = 5.0
"""Nobody waits longer for debts to be paid off. Who would is turned away then, and what it sent is not read."""
LONGEST_DEBT_S = 60.0
"""A tenant that stops is free of its debts after that, whatever it did."""
BYTES_PER_TURN = 16_384
"""A body costs a turn more for each of them: reading them and making them tokens takes about as long as the rest of a refusal."""


@dataclass(slots=True)
class Turns:
    """Of one tenant, as of a moment of the monotonic clock."""

    per_s: float
    """How quickly debts are paid off."""
    debt: float = 0.0
    inside: int = 0
    """Taken by requests that are read and judged now."""
    at_s: float = 0.0

    @property
    def burst(self) -> float:
        return max(LEAST_BURST, BURST_S * self.per_s)

    def take(self, now_s: float) -> bool:
        """A request wants in. False: there is no turn left."""
        if self._debt_at(now_s) + self.inside + 1 > self.burst:
            return False
        self.inside += 1
        return True

    def give_back(self) -> None:
        """It was admitted."""
        self.inside -= 1

    def owe(self, num_bytes: int, now_s: float) -> None:
        """It was refused after so much of it had been read."""
        self.inside -= 1
        most = self.burst + LONGEST_DEBT_S * self.per_s
        self.debt = min(most, self._debt_at(now_s) + 1 + num_bytes / BYTES_PER_TURN)

    def paid_in_s(self, ahead: int, now_s: float) -> float:
        """When there is a turn behind so many others, if nobody gives one back; 0: debts are not what it waits for."""
        return max(0.0, (self._debt_at(now_s) + ahead + 1 - self.burst) / self.per_s)

    def _debt_at(self, now_s: float) -> float:
        self.debt = max(0.0, self.debt - (now_s - self.at_s) * self.per_s)
        self.at_s = now_s
        return self.debt
