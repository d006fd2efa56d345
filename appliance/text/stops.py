"""Stop strings in a stream of text."""

from collections.abc import Sequence


class StopMatcher:
    """Lets text through up to the first stop string; holds back only what may be the beginning of one.

    The stop string that is complete first wins, the longer one of two that end together, so the answer does not
    depend on how the text is cut into pieces.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        assert all(stops), "an empty stop string would match everywhere"
        self._searches = tuple(map(_Search, stops))
        self._held = ""
        self.matched: str | None = None
        """The stop string found; nothing passes after it."""

    def push(self, text: str) -> str:
        """The part of the text so far that is surely wanted and was not returned before."""
        if self.matched is not None:
            return ""
        if not self._searches:
            return text
        num_before = len(self._held)
        ends = [(num_before + end, search.stop) for search in self._searches if (end := search.push(text)) is not None]
        text = self._held + text
        if ends:
            _, at, self.matched = min((end, end - len(stop), stop) for end, stop in ends)
            self._held = ""
            return text[:at]
        cut = len(text) - max(search.num_found for search in self._searches)
        self._held = text[cut:]
        return text[:cut]

    def flush(self) -> str:
        """What was held back, once no text follows."""
        held, self._held = self._held, ""
        return held


class _Search:
    """Looks for one stop string in pieces of text (Knuth, Morris and Pratt, 1977): a character costs a bounded time on average, whatever
    the stop string is. Clients choose them, and all streams share one event loop."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.num_found = 0
        """Length of the longest beginning of `stop` that the text so far ends with."""
        self._borders = [0]
        """Of the beginnings of length 1, 2, ...: their longest proper beginning that they end with, too; as far as it was needed."""

    def push(self, text: str) -> int | None:
        """Where in `text` the stop string ends first; nothing is to be pushed after it."""
        stop, num_found, start = self.stop, self.num_found, 0
        if not num_found:
            start = text.find(stop[0])
            if start < 0:
                return None
        for at in range(start, len(text)):
            char = text[at]
            while num_found and char != stop[num_found]:
                num_found = self._border(num_found)
            num_found += char == stop[num_found]
            if num_found == len(stop):
                return at + 1
        self.num_found = num_found
        return None

    def _border(self, length: int) -> int:
        borders, stop = self._borders, self.stop
        while len(borders) < length:
            char, border = stop[len(borders)], borders[-1]
            while border and char != stop[border]:
                border = borders[border - 1]
            borders.append(border + (char == stop[border]))
        return borders[length - 1]
