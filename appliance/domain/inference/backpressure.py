"""Holds a stream back while its reader lags, so that nobody draws tokens, and keeps pages, for a client that does not take them."""

from asyncio import TimerHandle, get_running_loop
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

READER_STATE = "reader"
"""Key of the ASGI scope's `state`: the `Reader` at the other end of the connection."""
LOOK_EVERY_S = 0.02
"""Nothing tells that the kernel's send queue has drained; while a stream is paused, somebody looks."""


class Reader(Protocol):
    """The client's end of a connection."""

    def unacknowledged_bytes(self) -> int:
        """Bytes that wait in the transport's buffer or in the kernel's send queue."""
        ...

    def cut(self) -> None:
        """Hang up on it: it takes nothing."""
        ...


@dataclass(frozen=True, slots=True)
class Patience:
    """How far a reader may lag."""

    max_unacknowledged_tokens: int
    """0: as far as it likes."""
    write_deadline_s: float
    """How long it may take nothing."""


class Backlog:
    """Tokens of a stream that its reader has not taken: not written yet, or in bytes that the kernel has not seen acknowledged."""

    def __init__(self, unacknowledged_bytes: Callable[[], int]) -> None:
        self._unacknowledged_bytes = unacknowledged_bytes
        self._new_tokens = 0
        self._writing_tokens = 0
        self._sent: deque[tuple[int, int]] = deque()
        """(bytes, tokens) of each write, oldest first, as far as they may be unacknowledged."""
        self._sent_bytes = 0
        self._sent_tokens = 0

    @property
    def most_tokens(self) -> int:
        """As `tokens`, without asking the kernel: what was acknowledged since the last look counts, too."""
        return self._new_tokens + self._writing_tokens + self._sent_tokens

    def add(self, num_tokens: int) -> None:
        """The engine drew tokens."""
        self._new_tokens += num_tokens

    def take(self) -> None:
        """All new tokens go into the next write. Those of a write that never came were held back by us: no reader is to blame."""
        self._writing_tokens, self._new_tokens = self._new_tokens, 0

    def note_written(self, num_bytes: int) -> None:
        """The transport has what was taken, as so many bytes; HTTP's framing comes on top, so they count a little too long."""
        self._sent.append((num_bytes, self._writing_tokens))
        self._sent_bytes += num_bytes
        self._sent_tokens += self._writing_tokens
        self._writing_tokens = 0

    def tokens(self) -> int:
        """Tokens not taken by now. The bytes that wait are the newest ones: writes are forgotten from the oldest on."""
        waiting_bytes = self._unacknowledged_bytes()
        while self._sent and self._sent_bytes - self._sent[0][0] >= waiting_bytes:
            num_bytes, num_tokens = self._sent.popleft()
            self._sent_bytes -= num_bytes
            self._sent_tokens -= num_tokens
        return self.most_tokens


class Backpressure:
    """Pauses a stream above the limit, lets it go on at half of it, and cuts off a reader that takes nothing for too long."""

    def __init__(
        self, reader: Reader, patience: Patience, *, pause: Callable[[], None], resume: Callable[[], None], clock_ns: Callable[[], int]
    ) -> None:
        self._reader = reader
        self._patience = patience
        self._pause = pause
        self._resume = resume
        self._clock_ns = clock_ns
        self._backlog = Backlog(reader.unacknowledged_bytes)
        self._timer: TimerHandle | None = None
        """Runs while the stream is paused."""
        self._waiting = 0
        self._progress_ns = 0
        """When the reader last took something, as far as anybody looked."""
        self._paused_ns = 0
        self.spans_ns: list[tuple[int, int]] = []
        """From, to: pauses that ended."""

    @property
    def is_paused(self) -> bool:
        return self._timer is not None

    @property
    def pauses_ns(self) -> tuple[tuple[int, int], ...]:
        """From, to: when the stream was paused, until now where it is."""
        return (*self.spans_ns, (self._paused_ns, self._clock_ns())) if self.is_paused else tuple(self.spans_ns)

    def add(self, num_tokens: int) -> None:
        """The engine drew tokens: is it too many?"""
        backlog, limit = self._backlog, self._patience.max_unacknowledged_tokens
        backlog.add(num_tokens)
        if self.is_paused or backlog.most_tokens <= limit or backlog.tokens() <= limit:
            return
        self._paused_ns = self._progress_ns = self._clock_ns()
        self._waiting = backlog.tokens()
        self._look_later()
        self._pause()

    def take(self) -> None:
        self._backlog.take()

    def note_written(self, num_bytes: int) -> None:
        self._backlog.note_written(num_bytes)

    def close(self) -> None:
        """The stream is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._end_pause()

    def _look_later(self) -> None:
        self._timer = get_running_loop().call_later(LOOK_EVERY_S, self._look)

    def _look(self) -> None:
        """Has the reader caught up, or at least taken something?"""
        now_ns, waiting = self._clock_ns(), self._backlog.tokens()
        if waiting <= self._patience.max_unacknowledged_tokens // 2:
            self._end_pause()
            self._resume()
            return
        if waiting < self._waiting:
            self._progress_ns = now_ns
        self._waiting = waiting
        self._look_later()
        if now_ns - self._progress_ns > self._patience.write_deadline_s * 1e9:
            self._reader.cut()

    def _end_pause(self) -> None:
        self._timer = None
        self.spans_ns.append((self._paused_ns, self._clock_ns()))
