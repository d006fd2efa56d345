"""Which cached page goes first when a page is needed."""

from collections import OrderedDict
from typing import Protocol


class EvictionPolicy(Protocol):
    """Orders the pages that nobody references and the prefix cache still knows."""

    def add(self, page: int) -> None:
        """The page's last reference is gone."""
        ...

    def remove(self, page: int) -> None:
        """The page is referenced again."""
        ...

    def pop(self) -> int:
        """Take out the page to evict. Raises KeyError when there is none."""
        ...

    def __len__(self) -> int: ...

    def __contains__(self, page: int) -> bool: ...


class LeastRecentlyUsed:
    """The page whose last reference ended longest ago goes first.

    A sequence's pages are released last page first, so a chain loses its tail before its head: a head without its
    tail is still a useful prefix, a tail without its head can not be found.
    """

    def __init__(self) -> None:
        self._pages: OrderedDict[int, None] = OrderedDict()

    def add(self, page: int) -> None:
        self._pages[page] = None

    def remove(self, page: int) -> None:
        del self._pages[page]

    def pop(self) -> int:
        return self._pages.popitem(last=False)[0]

    def __len__(self) -> int:
        return len(self._pages)

    def __contains__(self, page: int) -> bool:
        return page in self._pages
