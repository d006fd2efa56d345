"""Every sequence that was submitted hears of its end, whatever happens to the engine."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from engine.client import EngineClient, Listener
from engine.errors import EngineGone
from engine.link import Link
from engine.wire import Abort, FinishReason, Heartbeat, Load, Sampling, SequenceEvent, StepDone, Submit

LOAD = Load(0, 0, {}, {}, 0, 1, 0, 0)


def submit(sequence_id: int) -> Submit:
    return Submit(sequence_id, "req_1", "default", "fast", "tenant:default", (1, 2), Sampling(), received_ns=0)


class Heard:
    """Records what a listener hears."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.lost: list[str] = []
        note = self.messages.append
        self.listener = Listener(
            on_progress=note, on_prepared=note, on_ready=note, on_step=note, on_heartbeat=note, on_fatal=note, on_lost=self.lost.append
        )


@asynccontextmanager
async def connected(heard: Heard) -> AsyncIterator[tuple[EngineClient, Link, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    transport, client = await asyncio.get_running_loop().create_connection(lambda: EngineClient(heard.listener), sock=ours)
    try:
        yield client, Link(theirs), theirs
    finally:
        transport.close()
        theirs.close()


async def until(condition: Any) -> None:
    for _ in range(100_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came")


async def test_events_reach_the_sink_of_their_sequence_and_stop_after_the_last() -> None:
    heard, events = Heard(), []
    async with connected(heard) as (client, link, _):
        client.submit(submit(client.next_sequence_id()), events.append)
        await until(lambda: link.receive(0.0))
        first, last = SequenceEvent(1, (7,)), SequenceEvent(1, (8,), finish=FinishReason.LENGTH)
        link.send(StepDone((first, last, SequenceEvent(1, (9,)), SequenceEvent(2, (1,))), LOAD))
        await until(lambda: heard.messages)
        assert events == [first, last]
        assert client.num_live == 0


async def test_a_lost_engine_ends_every_live_sequence_with_an_error_and_is_told_once() -> None:
    heard, events = Heard(), []
    async with connected(heard) as (client, _, theirs):
        for _ in range(3):
            client.submit(submit(client.next_sequence_id()), events.append)
        theirs.close()
        await until(lambda: heard.lost)
        assert [(event.sequence_id, event.finish) for event in events] == [(n, FinishReason.ERROR) for n in (1, 2, 3)]
        assert len(heard.lost) == 1
        with pytest.raises(EngineGone):
            client.submit(submit(4), events.append)


async def test_an_abort_names_only_sequences_that_are_alive() -> None:
    heard = Heard()
    async with connected(heard) as (client, link, _):
        client.submit(submit(1), lambda _: None)
        client.abort([1, 2])
        received: list[Any] = []
        await until(lambda: received.extend(link.receive(0.0)) or len(received) == 2)
        assert received[1] == Abort((1,))


async def test_heartbeats_are_heard_before_the_engine_is_ready() -> None:
    heard = Heard()
    async with connected(heard) as (_, link, _):
        link.send(Heartbeat(None))
        await until(lambda: heard.messages)
        assert heard.messages == [Heartbeat(None)]
