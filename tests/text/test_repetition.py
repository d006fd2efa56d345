from hypothesis import given
from hypothesis import strategies as st

from appliance.text.repetition import MIN_REPEATED_TOKENS, MIN_ROUNDS, NGRAM_TOKENS, RepetitionDetector

tokens = st.lists(st.integers(0, 3), max_size=150)


def first_alarm(token_ids: list[int]) -> int | None:
    """How many tokens it took; None: it never rang."""
    detector = RepetitionDetector()
    return next((count for count, token_id in enumerate(token_ids, 1) if detector.push(token_id)), None)


def loops(token_ids: list[int]) -> bool:
    """From the definition: the end equals what stands a period before it, for long enough and often enough."""
    for period in range(1, len(token_ids) // MIN_ROUNDS + 1):
        matched = max((MIN_ROUNDS - 1) * period, MIN_REPEATED_TOKENS)
        if matched + period <= len(token_ids) and token_ids[-matched:] == token_ids[-matched - period : -period]:
            return True
    return False


@given(tokens)
def test_whatever_it_stops_does_loop(token_ids: list[int]) -> None:
    count = first_alarm(token_ids)
    assert count is None or loops(token_ids[:count])


@given(st.lists(st.integers(0, 9), max_size=40), st.lists(st.integers(0, 9), min_size=1, max_size=60))
def test_every_loop_is_stopped_a_round_after_it_is_one(before: list[int], unit: list[int]) -> None:
    rounds = MIN_ROUNDS + 2 + (MIN_REPEATED_TOKENS + NGRAM_TOKENS) // len(unit)
    assert first_alarm(before + unit * rounds) is not None


def test_the_same_phrase_twice_is_no_loop() -> None:
    phrase = list(range(100, 140))
    assert first_alarm(phrase + phrase + list(range(40)) + phrase) is None
