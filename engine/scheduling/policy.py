"""In which order prefill work is considered: prompts half done, and sequences that wait for admission."""

from collections.abc import Iterable, Iterator
from typing import Protocol

from engine.scheduling.draft import Row
from engine.scheduling.request import Sequence
from engine.scheduling.tenants import Accounts


class Policy(Protocol):
    """Holds the sequences that have no slot, and orders all prefill work."""

    is_fair: bool
    """Rows and pages are shared between tenants, too."""

    def add(self, sequence: Sequence) -> None:
        """A new sequence, or a preempted one that comes back."""
        ...

    def remove(self, sequence: Sequence) -> None:
        """It was admitted or dropped."""
        ...

    def order(self, prefills: Iterable[Sequence], now_ns: int, *, with_waiting: bool) -> Iterator[Sequence]:
        """Who comes first, of running prefills (given oldest first) and, `with_waiting`, of those without a slot.
        Sequences may be removed while the iterator runs."""
        ...

    def owed_before(self, sequence: Sequence) -> Sequence | None:
        """The first that waits in another lane of the tenant, one that is owed more: it is left the pages it needs, or the fast lane's
        endless work would have each page of the tenant's that comes free."""
        ...

    def note_pace(self, prompt_token_s: float) -> None:
        """A token of a prompt is expected to take so long from now on; 0: unknown."""
        ...

    def note_step(self, rows: Iterable[Row]) -> None:
        """A step with these rows of prompts was planned."""
        ...

    def note_decodes(self) -> None:
        """A step was planned for which no prompt was there."""
        ...

    def take_back_step(self) -> None:
        """The step noted last was cut short: its prompts got nothing."""
        ...

    def __len__(self) -> int: ...

    def oldest_received_ns(self) -> int:
        """Receipt of the request that waits longest; 0 when none waits."""
        ...


class FirstComeFirstServed:
    """By arrival; preempted sequences arrived before everybody who was never admitted past them, so they go first."""

    is_fair = False

    def __init__(self) -> None:
        self._resumed: list[Sequence] = []
        self._arrived: dict[int, Sequence] = {}

    def add(self, sequence: Sequence) -> None:
        if sequence.preemptions:
            self._resumed.append(sequence)
            self._resumed.sort(key=_arrival)
        else:
            self._arrived[sequence.sequence_id] = sequence

    def remove(self, sequence: Sequence) -> None:
        if sequence.preemptions:
            self._resumed.remove(sequence)
        else:
            del self._arrived[sequence.sequence_id]

    def __iter__(self) -> Iterator[Sequence]:
        return iter((*self._resumed, *self._arrived.values()))

    def order(self, prefills: Iterable[Sequence], now_ns: int, *, with_waiting: bool) -> Iterator[Sequence]:
        """Begun prompts first."""
        del now_ns
        yield from prefills
        if with_waiting:
            yield from self

    def owed_before(self, sequence: Sequence) -> None:
        """Lanes are nothing to it."""

    def note_pace(self, prompt_token_s: float) -> None:
        """Nobody is hurried by it."""

    def note_step(self, rows: Iterable[Row]) -> None:
        """Nothing to remember."""

    def note_decodes(self) -> None:
        """Nothing to remember."""

    def take_back_step(self) -> None:
        """Nothing was remembered."""

    def __len__(self) -> int:
        return len(self._resumed) + len(self._arrived)

    def oldest_received_ns(self) -> int:
        firsts = (*self._resumed[:1], *(sequence for _, sequence in zip(range(1), self._arrived.values(), strict=False)))
        return min((sequence.submit.received_ns for sequence in firsts), default=0)


class ByPriority:
    """The tenants' priorities first, by arrival among equals."""

    is_fair = False

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._waiting: list[Sequence] = []

    def add(self, sequence: Sequence) -> None:
        self._waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        self._waiting.remove(sequence)

    def order(self, prefills: Iterable[Sequence], now_ns: int, *, with_waiting: bool) -> Iterator[Sequence]:
        """A begun prompt goes before waiting ones of its priority only where it is older."""
        del now_ns
        yield from sorted((*prefills, *(self._waiting if with_waiting else ())), key=self._key)

    def owed_before(self, sequence: Sequence) -> None:
        """Lanes are nothing to it."""

    def note_pace(self, prompt_token_s: float) -> None:
        """Nobody is hurried by it."""

    def note_step(self, rows: Iterable[Row]) -> None:
        """Nothing to remember."""

    def note_decodes(self) -> None:
        """Nothing to remember."""

    def take_back_step(self) -> None:
        """Nothing was remembered."""

    def __len__(self) -> int:
        return len(self._waiting)

    def oldest_received_ns(self) -> int:
        return min((sequence.submit.received_ns for sequence in self._waiting), default=0)

    def _key(self, sequence: Sequence) -> tuple[int, int]:
        return -self._accounts.of(sequence.submit.tenant_id).policy.priority, sequence.arrival


def _arrival(sequence: Sequence) -> int:
    return sequence.arrival
