"""Copies of whole pages that the next step begins with: copy-on-write, to the host, and back."""

from engine.scheduling.plan import NO_MOVES, PageMoves
from engine.scheduling.swap import HostPages


class PendingMoves:
    """Collected while a step is planned. A step that is not planned leaves them to the next one: no page is written in between."""

    def __init__(self, host_pages: int) -> None:
        self.host = HostPages(host_pages)
        self.num_copied = self.num_swapped_out = self.num_swapped_in = 0
        """Pages since the start."""
        self._out: dict[int, tuple[tuple[int, int], ...]] = {}
        """By sequence."""
        self._copied: list[tuple[int, int]] = []
        self._in: list[tuple[int, int]] = []
        self._returning: list[int] = []
        """Host pages that are free once the next step has read them: what leaves in that step is written before."""

    def copy(self, source: int, target: int) -> None:
        """Copy-on-write."""
        self._copied.append((source, target))

    def release(self, pages: list[int]) -> None:
        """Nobody needs what was to be copied to these pages, or brought back to them."""
        if self._copied or self._in:
            self._copied = [move for move in self._copied if move[1] not in pages]
            self._in = [move for move in self._in if move[1] not in pages]

    def swap_out(self, sequence_id: int, pages: list[int]) -> list[int]:
        """Keep these pages on the host; where. Empty where it has no room for them."""
        host_pages = self.host.take(len(pages))
        if host_pages:
            self._out[sequence_id] = tuple(zip(pages, host_pages, strict=True))
        return host_pages

    def swap_in(self, host_page: int, page: int) -> None:
        """Bring it back."""
        self._in.append((host_page, page))

    def return_host(self, host_pages: list[int]) -> None:
        """They are free, once what was to be brought back from them is back."""
        self._returning += host_pages

    def drop(self, sequence_id: int, host_pages: list[int]) -> None:
        """The sequence ended while it was swapped out."""
        self._out.pop(sequence_id, None)
        self.host.give_back(host_pages)

    def take(self) -> PageMoves:
        """All of them, for the step that was planned."""
        if not (self._out or self._copied or self._in or self._returning):
            return NO_MOVES
        moves = PageMoves(tuple(pair for pairs in self._out.values() for pair in pairs), tuple(self._copied), tuple(self._in))
        self.num_swapped_out += len(moves.swapped_out)
        self.num_copied += len(moves.copied)
        self.num_swapped_in += len(moves.swapped_in)
        self.host.give_back(self._returning)
        self._out, self._copied, self._in, self._returning = {}, [], [], []
        return moves

    def check_nothing_held(self) -> None:
        """The idle invariant."""
        held = self.host.num_pages - self.host.num_free - len(self._returning)
        assert not held, f"idle, but {held} host pages are taken"
