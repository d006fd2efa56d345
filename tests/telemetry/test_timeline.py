"""A request's drawing: it covers the whole life, shows what took most of each stretch, and names whose work that was."""

from itertools import pairwise

import pytest

from appliance.telemetry.explain.pieces import Recorded
from appliance.telemetry.explain.timeline import NUM_CELLS, timeline_of
from appliance.ui.timelines import drawing_of
from tests.telemetry.simulation import simulate
from tests.telemetry.test_explain import STORY_RECORDED, report_of


def test_the_drawing_of_a_story_shows_its_stretches_in_order() -> None:
    drawn = timeline_of(report_of(), STORY_RECORDED)
    assert [each.label for each in drawn.phases] == [
        "receive", "tokenize", "admission", "queue", "prefill", "decode", "decode_wait", "between_steps", "decode", "detokenize",
        "write", "backpressure", "write",
    ]  # fmt: skip
    waits = [each for each in drawn.phases if each.label == "decode_wait"]
    assert waits[0].seconds == pytest.approx(0.2, abs=2 * 0.385 / NUM_CELLS)
    assert {each.label for each in drawn.owners} == {None, "noisy"}
    longest = max(drawn.owners, key=lambda each: each.seconds)
    assert longest.label == "noisy" and longest.seconds == pytest.approx(0.2, abs=2 * 0.385 / NUM_CELLS)


def test_a_drawing_has_no_holes_and_ends_where_the_request_ended() -> None:
    world = simulate(3, 100)
    for report in world.reports:
        drawn = timeline_of(report, world.recorded(report))
        for stretches in (drawn.phases, drawn.owners):
            assert sum(each.seconds for each in stretches) == pytest.approx(drawn.explanation.total_s, abs=1e-3)
            assert all(one.at_s + one.seconds == pytest.approx(other.at_s, abs=1e-5) for one, other in pairwise(stretches))
            assert all(one.label != other.label for one, other in pairwise(stretches))
        assert len(drawn.phases) <= NUM_CELLS


def test_a_drawn_bar_says_in_words_what_it_shows() -> None:
    drawing = drawing_of(timeline_of(report_of(), STORY_RECORDED), "quiet")
    assert sum(box.width for box in drawing.phases) == pytest.approx(100, abs=0.1)
    assert [(key.kind, key.label, round(key.seconds, 3)) for key in drawing.owner_keys] == [
        ("own", "its own time", 0.07), ("other1", "work of noisy", 0.305), ("other2", "work of third", 0.01),
    ]  # fmt: skip
    assert [mark.title for mark in drawing.marks] == ["TTFT target 100 ms", "first token after 136 ms"]
    assert [gap.title for gap in drawing.gaps] == ["no token for 212 ms: most of it waiting between two tokens, work of noisy, step 5"]
    assert [mark.title for mark in drawing.ticks] == ["0", "100 ms", "200 ms", "300 ms"]
    assert sum(row.ratio for row in drawing.rows) == pytest.approx(1)


def test_a_refused_request_is_drawn_too() -> None:
    report = report_of(submitted_ns=0, over_ns=0, first_sent_ns=0, scheduled_ns=0)
    drawing = drawing_of(timeline_of(report, Recorded(())), "quiet")
    assert [box.kind for box in drawing.phases] == ["intake", "intake", "intake"] and not drawing.gaps
