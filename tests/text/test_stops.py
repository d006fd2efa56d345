import sys
from types import FrameType
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from appliance.text.stops import StopMatcher

text = st.text("abc", max_size=24)
stops = st.lists(st.text("abc", min_size=1, max_size=5), max_size=3)


def run(pieces: list[str], stop_strings: list[str]) -> tuple[str, str | None]:
    matcher = StopMatcher(stop_strings)
    out = "".join(matcher.push(piece) for piece in pieces) + matcher.flush()
    return out, matcher.matched


def expected(whole: str, stop_strings: list[str]) -> tuple[str, str | None]:
    """Character by character, straight from the definition."""
    for end in range(len(whole) + 1):
        ending = [stop for stop in stop_strings if whole[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return whole[: end - len(stop)], stop
    return whole, None


@given(pieces=st.lists(text, max_size=8), stop_strings=stops)
def test_nothing_at_or_after_the_first_complete_stop_string_passes_however_the_text_is_cut(
    pieces: list[str], stop_strings: list[str]
) -> None:
    assert run(pieces, stop_strings) == expected("".join(pieces), stop_strings)


@given(pieces=st.lists(text, max_size=8), stop_strings=stops)
def test_only_a_possible_beginning_of_a_stop_string_is_held_back(pieces: list[str], stop_strings: list[str]) -> None:
    matcher, seen, passed = StopMatcher(stop_strings), "", ""
    for piece in pieces:
        seen, passed = seen + piece, passed + matcher.push(piece)
        if matcher.matched is None:
            held = seen.removeprefix(passed)
            assert held == "" or any(stop.startswith(held) and stop != held for stop in stop_strings)


def test_a_stop_string_split_over_pieces_is_never_let_through() -> None:
    matcher = StopMatcher(["\n\nHuman:"])
    assert [matcher.push(piece) for piece in ["Hi", "\n", "\nHu", "man", ": more", "again"]] == ["Hi", "", "", "", "", ""]
    assert matcher.matched == "\n\nHuman:" and matcher.flush() == ""


def test_text_that_only_looked_like_a_stop_string_is_let_through_later() -> None:
    matcher = StopMatcher(["END"])
    assert [matcher.push(piece) for piece in ["the E", "N", "ergy"]] == ["the ", "", "ENergy"]


def test_a_character_costs_a_bounded_number_of_steps_however_long_and_alike_the_stop_strings_are() -> None:
    lines = 0

    def count(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    stop_strings = [*("x" + "a" * 510 + last for last in "bcdefgh"), "a" * 511 + "b"]
    matcher, num_pieces, tracing = StopMatcher(stop_strings), 1_200, sys.gettrace()
    sys.settrace(count)
    try:
        for piece in range(num_pieces):
            matcher.push("xa" if piece % 600 == 599 else "aa")
    finally:
        sys.settrace(tracing)
    assert matcher.matched is None
    assert lines < 16 * 2 * num_pieces * len(stop_strings)
