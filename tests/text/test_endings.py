"""Ends inside a text: the same end however the text is cut into pieces."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.text.endings import BlockEnding, Ending, JsonEnding

FENCE = ("```", "```")
FINAL_ANSWER = ("Final Answer:", "\n\n")


def text_up_to_the_end(ending: Ending, text: str, cuts: set[int]) -> str | None:
    """What belongs of a text that is fed in pieces cut at these places; None where it does not end."""
    places = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    for start, end in itertools.pairwise(places):
        at = ending.push(text[start:end])
        if at is not None:
            return text[: start + at]
    return None


cuts = st.sets(st.integers(1, 60))


@given(cuts)
def test_a_fence_ends_where_it_is_closed_not_where_it_is_opened(cuts: set[int]) -> None:
    block = 'Here it is:\n```json\n{"a": 1}\n```'
    assert text_up_to_the_end(BlockEnding(*FENCE), block + "\nAnd more ```", cuts) == block
    assert text_up_to_the_end(BlockEnding(*FENCE), block[:-1], cuts) is None


@given(cuts)
def test_a_final_answer_ends_with_its_paragraph_and_blank_lines_before_it_do_not_count(cuts: set[int]) -> None:
    answer = "First.\n\nThen.\n\nFinal Answer:\n\n42\n\n"
    assert text_up_to_the_end(BlockEnding(*FINAL_ANSWER), answer + "Unless", cuts) == answer


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('ab"\\[]{}\n'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('k"}', max_size=3), inner, max_size=3),
    max_leaves=8,
).filter(lambda value: isinstance(value, list | dict))


@given(values, cuts, st.text("ab 1}]", max_size=8))
def test_the_first_whole_json_value_ends_a_text(value: object, cuts: set[int], before: str) -> None:
    text = json.dumps(value)
    assert text_up_to_the_end(JsonEnding(), before + text + " {}", cuts) == before + text
    assert text_up_to_the_end(JsonEnding(), before + text[:-1], cuts) is None


@pytest.mark.parametrize("prose", ["[sic] {}", "{name} []", "[}] {}"])
def test_brackets_that_are_no_json_are_passed_over(prose: str) -> None:
    assert text_up_to_the_end(JsonEnding(), prose + " more", set()) == prose
