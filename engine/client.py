"""The control plane's end of the connection to one engine: an asyncio protocol with plain callbacks.

A step's frame reaches every waiting request in one turn of the event loop: no task switch a token.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import cast

import msgspec

from engine.errors import EngineGone
from engine.frames import FrameReader, encode_frame
from engine.wire import (
    Abort,
    CommonPrefixes,
    Fatal,
    FinishReason,
    FromEngine,
    Heartbeat,
    Pause,
    Prepared,
    Progress,
    Ready,
    Resume,
    SequenceEvent,
    SetPolicies,
    Shutdown,
    StepDone,
    Submit,
)

type Sink = Callable[[SequenceEvent], None]
"""Takes each event of one sequence; the one with `finish` set is the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """What the owner of a client wants to hear. Called from the event loop, so each must be quick."""

    on_progress: Callable[[Progress], None]
    on_prepared: Callable[[Prepared], None]
    on_ready: Callable[[Ready], None]
    on_step: Callable[[StepDone], None]
    """After the step's events have reached their sinks."""
    on_heartbeat: Callable[[Heartbeat], None]
    on_fatal: Callable[[Fatal], None]
    on_lost: Callable[[str], None]
    """The connection is over; called once, after every live sink got its `ERROR` event."""


class EngineClient(asyncio.Protocol):
    """One connection to one engine. Make it with `loop.create_connection(lambda: EngineClient(listener), sock=sock)`."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._frames = FrameReader(msgspec.msgpack.Decoder(FromEngine))
        self._sinks: dict[int, Sink] = {}
        self._ids = itertools.count(1)
        self._transport: asyncio.WriteTransport | None = None
        self._lost_reason: str | None = None
        self.last_submitted_id = 0
        """Newest sequence handed to the engine; a `Load` that knows less of it is behind."""

    # ---- towards the engine

    def next_sequence_id(self) -> int:
        """An id that this connection has not used."""
        return next(self._ids)

    @property
    def num_live(self) -> int:
        """Sequences submitted and not ended."""
        return len(self._sinks)

    @property
    def is_connected(self) -> bool:
        return self._transport is not None and self._lost_reason is None

    def submit(self, submit: Submit, sink: Sink) -> None:
        """Hand a sequence to the engine. `sink` gets its events, the last one has `finish` set, always.

        Raises:
            EngineGone: there is no connection; `sink` gets nothing.
        """
        self._send(submit)
        self._sinks[submit.sequence_id] = sink
        self.last_submitted_id = submit.sequence_id

    def abort(self, sequence_ids: Iterable[int]) -> None:
        """Drop sequences. Each live one still answers with one last event."""
        alive = tuple(sequence_id for sequence_id in sequence_ids if sequence_id in self._sinks)
        if alive and self.is_connected:
            self._send(Abort(alive))

    def pause(self, sequence_ids: Iterable[int]) -> None:
        """Draw no more tokens for these sequences until `resume`; a step in flight may still bring one."""
        self._send_if_connected(Pause(tuple(sequence_ids)))

    def resume(self, sequence_ids: Iterable[int]) -> None:
        """Go on with sequences that were paused."""
        self._send_if_connected(Resume(tuple(sequence_ids)))

    def send_prefixes(self, prefixes: CommonPrefixes) -> None:
        self._send(prefixes)

    def send_policies(self, policies: SetPolicies) -> None:
        self._send(policies)

    def shutdown(self) -> None:
        """Ask the engine to exit; the connection ends soon after."""
        self._send_if_connected(Shutdown())

    def close(self) -> None:
        """Close the connection; the engine exits when it sees the end of the stream."""
        if self._transport is not None:
            self._transport.close()

    def _send_if_connected(self, message: msgspec.Struct) -> None:
        if self.is_connected:
            self._send(message)

    def _send(self, message: msgspec.Struct) -> None:
        if self._transport is None or self._lost_reason is not None:
            raise EngineGone(self._lost_reason or "the engine is not connected")
        self._transport.write(encode_frame(message))

    # ---- from the engine (asyncio.Protocol)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's are none by their class

    def data_received(self, data: bytes) -> None:
        try:
            messages = self._frames.feed(data)
        except EngineGone as error:
            self._lose(str(error))
            self.close()
            return
        for message in messages:
            self._receive(message)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(f"the connection to the engine broke: {exc}" if exc else "the engine closed the connection")

    def _receive(self, message: FromEngine) -> None:
        listener = self._listener
        match message:
            case StepDone():
                for event in message.events:
                    self._deliver(event)
                listener.on_step(message)
            case Heartbeat():
                listener.on_heartbeat(message)
            case Progress():
                listener.on_progress(message)
            case Prepared():
                listener.on_prepared(message)
            case Ready():
                listener.on_ready(message)
            case Fatal():
                listener.on_fatal(message)

    def _deliver(self, event: SequenceEvent) -> None:
        sink = self._sinks.get(event.sequence_id) if event.finish is None else self._sinks.pop(event.sequence_id, None)
        if sink is not None:
            sink(event)

    def _lose(self, reason: str) -> None:
        if self._lost_reason is not None:
            return
        self._lost_reason = reason
        sinks, self._sinks = self._sinks, {}
        for sequence_id, sink in sinks.items():
            sink(SequenceEvent(sequence_id, finish=FinishReason.ERROR, message=reason))
        self._listener.on_lost(reason)
