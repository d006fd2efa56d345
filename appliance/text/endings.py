"""Ends inside a text that no stop string can name: a block that was opened and closed, a whole JSON value.

Each is fed a text in pieces and says how much of a piece still belongs; each looks at a character a bounded number of times.
"""

import re
from typing import Protocol

import msgspec

_JSON_OPENING = re.compile(r"[\[{]")
_JSON_MARK = re.compile(r'[\[\]{}"]')
_JSON_STRING_MARK = re.compile(r'["\\]')


class Ending(Protocol):
    """One way for a text to end."""

    def push(self, text: str) -> int | None:
        """Length of the part of `text` that belongs, where the end lies in it; None: it goes on."""
        ...


class BlockEnding:
    """The end of a block: the first `closing` behind `opening` and anything that is not blank. Both belong to the text."""

    def __init__(self, opening: str, closing: str) -> None:
        self._opening = opening
        self._closing = closing
        self._is_open = False
        self._has_content = False
        self._tail = ""
        """The last characters seen, too few to hold what is awaited."""

    def push(self, text: str) -> int | None:
        at = 0
        if not self._is_open:
            found = self._find(text, at, self._opening)
            if found is None:
                return None
            self._is_open, at = True, found
        if not self._has_content:
            at = len(text) - len(text[at:].lstrip())
            self._has_content = at < len(text)
        return self._find(text, at, self._closing) if self._has_content else None

    def _find(self, text: str, start: int, awaited: str) -> int | None:
        """Where `awaited` ends in `text`; it may have begun in an earlier piece."""
        seen = self._tail + text[start:]
        at = seen.find(awaited)
        if at >= 0:
            end = start + at + len(awaited) - len(self._tail)
            self._tail = ""
            return end
        self._tail = seen[max(0, len(seen) - len(awaited) + 1) :]
        return None


class JsonEnding:
    """The end of the first whole JSON object or array. What only looked like one, such as `[sic]`, is passed over."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._is_escaped = False
        self._parts: list[str] = []
        """Of the value so far."""

    def push(self, text: str) -> int | None:
        at = 0
        while at < len(text):
            if not self._depth:
                opening = _JSON_OPENING.search(text, at)
                if opening is None:
                    return None
                at = opening.start()
            end = self._close(text, at)
            self._parts.append(text[at : len(text) if end is None else end])
            if end is None:
                return None
            value, self._parts = "".join(self._parts), []
            if _is_json(value):
                return end
            at = end
        return None

    def _close(self, text: str, at: int) -> int | None:
        """Where the value that goes on (or begins) at `at` ends by its brackets."""
        if self._is_escaped:
            self._is_escaped, at = False, at + 1
        while mark := (_JSON_STRING_MARK if self._in_string else _JSON_MARK).search(text, at):
            at = mark.end()
            match mark.group():
                case '"':
                    self._in_string = not self._in_string
                case "\\":
                    self._is_escaped = at == len(text)
                    at += 1
                case "[" | "{":
                    self._depth += 1
                case _:
                    self._depth -= 1
                    if not self._depth:
                        return at
        return None


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True
