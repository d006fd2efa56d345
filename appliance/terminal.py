"""A text stream that may go away while we run: a lost ssh session, a closed pipe. What can not be written is dropped."""

import contextlib
from collections.abc import Callable
from typing import TextIO


class Terminal:
    """Writes to whatever `find` answers at that moment, so that log lines go above progress bars while these are shown.

    A server must not fail, nor stay alive, because nobody can read it any more.
    """

    def __init__(self, find: Callable[[], TextIO]) -> None:
        self._find = find

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):  # ValueError: it was closed on our side
            self._find().write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._find().flush()

    def isatty(self) -> bool:
        with contextlib.suppress(OSError, ValueError):
            return self._find().isatty()
        return False
