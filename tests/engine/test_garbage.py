"""Garbage is swept between steps, however busy the loop is, and never by chance."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from engine.garbage import STEPS_A_SWEEP, SWEEPS_A_GENERATION, Sweeper, freeze_garbage
from engine.wire import Heartbeat
from tests.engine.test_loop import running_loop, submit


class Cycle:
    def __init__(self) -> None:
        self.me = self


@pytest.fixture
def frozen() -> Iterator[None]:
    freeze_garbage()
    yield
    gc.unfreeze()
    gc.enable()


@pytest.mark.usefixtures("frozen")
def test_the_young_are_swept_often_and_who_survived_that_in_time() -> None:
    assert not gc.isenabled() and gc.get_freeze_count()
    sweeper = Sweeper()
    young = weakref.ref(Cycle())
    for _ in range(STEPS_A_SWEEP - 1):
        sweeper.after_step()
    assert young() is not None
    survivor = Cycle()
    sweeper.after_step()
    assert young() is None
    old = weakref.ref(survivor)
    del survivor
    for _ in range(STEPS_A_SWEEP * SWEEPS_A_GENERATION):
        sweeper.after_step()
    assert old() is None


@pytest.mark.usefixtures("frozen")
def test_at_rest_all_is_swept_once() -> None:
    sweeper = Sweeper()
    first = weakref.ref(Cycle())
    sweeper.at_rest()
    assert first() is None
    second = weakref.ref(Cycle())
    sweeper.at_rest()
    assert second() is not None
    sweeper.after_step()
    sweeper.at_rest()
    assert second() is None


@pytest.mark.usefixtures("frozen")
def test_a_busy_loop_sweeps_the_young_and_an_idle_one_all() -> None:
    generations: list[int] = []

    def note(phase: str, facts: dict[str, int]) -> None:
        if phase == "start":
            generations.append(facts["generation"])

    gc.callbacks.append(note)
    try:
        with running_loop() as (peer, _, _):
            peer.send(submit(1, max_tokens=STEPS_A_SWEEP + 10))
            peer.events_until_ended(1)
            next(message for message in peer.messages() if isinstance(message, Heartbeat))
    finally:
        gc.callbacks.remove(note)
    assert generations[0] == 0
    assert 2 in generations
