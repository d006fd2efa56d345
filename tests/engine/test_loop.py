"""The loop over a simulated device: one end for each sequence, the same tokens with and without overlap."""

import itertools
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from engine.errors import EngineGone
from engine.frames import FrameReader, encode_frame
from engine.link import Link
from engine.loop import EngineLoop
from engine.scheduling.limits import limits_of
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.simulated import SimulatedRunner
from engine.wire import (
    HEARTBEAT_S,
    Abort,
    EngineConfig,
    FinishReason,
    FromEngine,
    Heartbeat,
    Pause,
    Resume,
    Sampling,
    SequenceEvent,
    SetPolicies,
    Shutdown,
    StepDone,
    Submit,
    TenantPolicy,
    ToEngine,
)

CONFIG = EngineConfig(max_num_seqs=4, max_num_batched_tokens=64, block_size=16)
NUM_PAGES, VOCAB_SIZE = 64, 1000


class Peer:
    """The control plane's end, blocking."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(10)
        self._socket = sock
        self._frames = FrameReader(msgspec.msgpack.Decoder(FromEngine))
        self._messages: list[FromEngine] = []

    def send(self, *messages: msgspec.Struct) -> None:
        self._socket.sendall(b"".join(encode_frame(message) for message in messages))

    def messages(self) -> Iterator[FromEngine]:
        while True:
            while self._messages:
                yield self._messages.pop(0)
            self._messages += self._frames.feed(self._socket.recv(1 << 16))

    def steps(self) -> Iterator[StepDone]:
        return (message for message in self.messages() if isinstance(message, StepDone))

    def events_until_ended(self, count: int) -> list[SequenceEvent]:
        events: list[SequenceEvent] = []
        for step in self.steps():
            events += step.events
            if sum(event.finish is not None for event in events) == count:
                return events
        raise AssertionError("unreachable")


class LongSteps(Scheduler):
    """Every step is too long to plan behind it."""

    def ahead_from_ns(self, running_dispatched_ns: int) -> int:
        return running_dispatched_ns + 10**12


def make_loop(sock: socket.socket, *, overlap: bool, scheduler_type: type[Scheduler] = Scheduler) -> EngineLoop:
    limits = limits_of(CONFIG, vocab_size=VOCAB_SIZE, eos_token_ids=(0,), max_model_len=512, num_pages=NUM_PAGES, cache_version="test")
    runner = SimulatedRunner(num_pages=NUM_PAGES, page_size=16, num_slots=4, vocab_size=VOCAB_SIZE)
    return EngineLoop(scheduler_type(limits), runner, Link(sock), time.monotonic_ns, overlap=overlap, compiles_after_ready=lambda: 0)


@contextmanager
def running_loop(
    *early: ToEngine, overlap: bool = True, scheduler_type: type[Scheduler] = Scheduler
) -> Iterator[tuple[Peer, threading.Thread, list[BaseException]]]:
    ours, theirs = socket.socketpair()
    failures: list[BaseException] = []
    loop = make_loop(theirs, overlap=overlap, scheduler_type=scheduler_type)

    def run() -> None:
        try:
            loop.run(early)
        except BaseException as error:  # noqa: BLE001 - handed to the test
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield Peer(ours), thread, failures
    finally:
        ours.close()
        thread.join(10)
        theirs.close()
        assert not thread.is_alive()


def submit(sequence_id: int, prompt_tokens: int = 20, **sampling: object) -> Submit:
    prompt = tuple(itertools.islice(itertools.cycle(range(1, 100)), sequence_id, sequence_id + prompt_tokens))
    chosen = Sampling(**{"max_tokens": 8, "ignore_eos": True, **sampling})
    return Submit(sequence_id, f"req_{sequence_id}", "default", "fast", "tenant:default", prompt, chosen, received_ns=1)


def outputs(events: list[SequenceEvent]) -> dict[int, tuple[int, ...]]:
    texts: dict[int, tuple[int, ...]] = {}
    for event in events:
        texts[event.sequence_id] = texts.get(event.sequence_id, ()) + event.token_ids
    return texts


def test_overlapped_and_plain_loop_give_the_same_tokens() -> None:
    results = []
    for overlap, scheduler_type in ((True, Scheduler), (False, Scheduler), (True, LongSteps)):
        with running_loop(overlap=overlap, scheduler_type=scheduler_type) as (peer, _, _):
            peer.send(*(submit(n, prompt_tokens=5 * n, max_tokens=n) for n in range(1, 9)))
            results.append(outputs(peer.events_until_ended(8)))
    assert results[0] == results[1] == results[2]
    assert {n: len(tokens) for n, tokens in results[0].items()} == {n: n for n in range(1, 9)}


def test_every_step_leaves_a_record_whose_times_are_in_order_and_whose_shares_name_the_tenant() -> None:
    with running_loop() as (peer, _, _):
        peer.send(submit(1, prompt_tokens=100, max_tokens=3))
        records = []
        for step in peer.steps():
            assert step.record is not None
            records.append(step.record)
            if any(event.finish for event in step.events):
                break
    assert [record.prefill_tokens for record in records if record.prefill_tokens] == [64, 36]
    for record in records:
        assert record.planned_ns <= record.dispatched_ns <= record.done_ns <= record.committed_ns
        assert {share.tenant_id for share in record.shares} == {"default"}


def test_the_tenants_policies_reach_the_scheduler() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        loop = make_loop(theirs, overlap=True)
        Peer(ours).send(SetPolicies(1, (TenantPolicy(tenant_id="acme", weight=4.0),)), Shutdown())
        loop.run()
        assert loop._scheduler.accounts.of("acme").policy.weight == 4.0


def test_an_aborted_sequence_ends_once_and_its_neighbour_goes_on() -> None:
    with running_loop() as (peer, _, _):
        peer.send(submit(1, max_tokens=400), submit(2, max_tokens=50))
        peer.send(Abort((1, 77)))
        ends = [(event.sequence_id, event.finish) for event in peer.events_until_ended(2) if event.finish]
        assert sorted(ends) == [(1, FinishReason.ABORT), (2, FinishReason.LENGTH)]


def test_a_sequence_that_can_never_run_is_refused_with_a_reason_and_harms_nobody() -> None:
    with running_loop() as (peer, _, _):
        peer.send(submit(1, prompt_tokens=600), submit(2))
        events = peer.events_until_ended(2)
        refused = next(event for event in events if event.sequence_id == 1)
        assert refused.finish is FinishReason.ERROR
        assert "600" in refused.message
        assert len(outputs(events)[2]) == 8


def test_an_idle_loop_reports_that_no_page_is_used() -> None:
    with running_loop() as (peer, _, _):
        peer.send(submit(1))
        peer.events_until_ended(1)
        beat = next(message for message in peer.messages() if isinstance(message, Heartbeat))
        assert beat.load is not None
        assert beat.load.pages_used == 0
        assert beat.load.pages_free + beat.load.pages_cached == NUM_PAGES


def test_what_arrived_before_the_loop_counts_first() -> None:
    with running_loop(submit(1)) as (peer, _, _):
        assert len(outputs(peer.events_until_ended(1))[1]) == 8


def test_shutdown_ends_the_loop_and_a_closed_connection_is_an_error() -> None:
    with running_loop() as (peer, thread, failures):
        peer.send(Shutdown())
        thread.join(10)
        assert not thread.is_alive() and not failures
    with running_loop() as (_, thread, failures):
        pass
    assert isinstance(failures[0], EngineGone)


@pytest.mark.parametrize("prompt_tokens", [1, 16, 100])
def test_a_sequence_run_alone_before_serving_ends_with_its_tokens(prompt_tokens: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        events = make_loop(theirs, overlap=True).run_alone(submit(1, prompt_tokens=prompt_tokens, max_tokens=3))
        assert len(outputs(events)[1]) == 3
        assert events[-1].finish is FinishReason.LENGTH


def test_a_paused_sequence_leaves_the_loop_at_rest_until_it_is_resumed() -> None:
    with running_loop() as (peer, _, _):
        peer.send(submit(1, max_tokens=200))
        next(step for step in peer.steps() if step.events)
        peer.send(Pause((1,)))
        beats = list(itertools.islice((message for message in peer.messages() if isinstance(message, Heartbeat)), 3))
        times_ns = [beat.load.time_ns for beat in beats if beat.load is not None]
        assert times_ns[2] - times_ns[1] > HEARTBEAT_S * 0.5e9, "it waits for messages and does not spin"
        assert beats[-1].load is not None and beats[-1].load.pages_used > 0
        peer.send(Resume((1,)))
        assert peer.events_until_ended(1)[-1].finish is FinishReason.LENGTH


def test_an_abort_gives_its_pages_back_in_the_report_that_tells_of_it() -> None:
    for is_paused in (False, True):
        with running_loop() as (peer, _, _):
            peer.send(submit(1, max_tokens=200))
            assert next(step for step in peer.steps() if step.events).load.pages_used > 0
            peer.send(*([Pause((1,))] if is_paused else []), Abort((1,)))
            ended = next(step for step in peer.steps() if any(event.finish for event in step.events))
            assert ended.load.pages_used == 0 and not ended.load.running
