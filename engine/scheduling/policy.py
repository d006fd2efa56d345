"""In which order waiting sequences are considered for admission."""

from collections.abc import Iterator
from typing import Protocol

from engine.scheduling.request import Sequence


class WaitingQueue(Protocol):
    """Holds the sequences that have no slot."""

    def add(self, sequence: Sequence) -> None:
        """A new sequence, or a preempted one that comes back."""
        ...

    def remove(self, sequence: Sequence) -> None:
        """It was admitted or dropped."""
        ...

    def __iter__(self) -> Iterator[Sequence]:
        """Who comes first. Sequences may be removed while the iterator runs."""
        ...

    def __len__(self) -> int: ...

    def oldest_received_ns(self) -> int:
        """Receipt of the request that waits longest; 0 when none waits."""
        ...


class FirstComeFirstServed:
    """By arrival; preempted sequences arrived before everybody who was never admitted past them, so they go first."""

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

    def __len__(self) -> int:
        return len(self._resumed) + len(self._arrived)

    def oldest_received_ns(self) -> int:
        firsts = (*self._resumed[:1], *(sequence for _, sequence in zip(range(1), self._arrived.values(), strict=False)))
        return min((sequence.submit.received_ns for sequence in firsts), default=0)


def _arrival(sequence: Sequence) -> int:
    return sequence.arrival
