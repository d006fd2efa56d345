"""One output: whatever the tokens and however a reader keeps up, the pieces joined are the whole."""

from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.domain.inference.choice import Choice, Delta, Prompt
from appliance.domain.inference.ends import Ends
from appliance.text.model import TextModel
from engine.wire import FinishReason, SequenceEvent, TokenLogprob

token_ids = st.lists(st.one_of(st.integers(3, 600), st.integers(3, 49_151)), min_size=1, max_size=40)
stops = st.lists(st.text("ab e\n.1", min_size=1, max_size=4), max_size=3)


def events_of(ids: list[int], finish: FinishReason) -> list[SequenceEvent]:
    ended = [*ids, 2] if finish is FinishReason.STOP else ids
    return [
        SequenceEvent(1, (token_id,), (TokenLogprob(-float(position)),), finish if position == len(ended) - 1 else None)
        for position, token_id in enumerate(ended)
    ]


def run(model: TextModel, ids: list[int], stop: list[str], looks: set[int], finish: FinishReason, min_tokens: int = 0) -> list[Delta]:
    """Feed events one by one; a reader looks after those of `looks`, and at the end."""
    choice = Choice(
        0, Prompt((5,)), model.tokenizer, ends=Ends(strings=tuple(stop)), bound="max_tokens", min_tokens=min_tokens, echo=False, scores=True
    )
    deltas: list[Delta] = []
    for position, event in enumerate(events_of(ids, finish)):
        choice.feed(event, position + 1)
        if position in looks:
            deltas.append(choice.drain())
    return [*deltas, choice.drain()]


@settings(max_examples=300, deadline=None)
@given(ids=token_ids, stop=stops, looks=st.sets(st.integers(0, 40)), finish=st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]))
def test_what_a_reader_gets_does_not_depend_on_when_it_looks(
    model: TextModel, ids: list[int], stop: list[str], looks: set[int], finish: FinishReason
) -> None:
    pieces, whole = run(model, ids, stop, looks, finish), run(model, ids, stop, set(), finish)
    assert "".join(piece.text for piece in pieces) == whole[0].text
    assert [token for piece in pieces for token in piece.scored] == whole[0].scored
    assert pieces[-1].finish_reason == whole[0].finish_reason is not None


@settings(max_examples=300, deadline=None)
@given(ids=token_ids, stop=stops, looks=st.sets(st.integers(0, 40)))
def test_the_text_is_that_of_the_tokens_up_to_the_first_stop_string(
    model: TextModel, ids: list[int], stop: list[str], looks: set[int]
) -> None:
    deltas = run(model, ids, stop, looks, FinishReason.LENGTH)
    text = "".join(delta.text for delta in deltas)
    everything = b"".join(model.tokenizer.token_bytes[token_id] for token_id in ids).decode(errors="replace")
    assert everything.startswith(text)
    assert not any(s in text for s in stop)
    if not any(s in everything for s in stop):
        assert text == everything and deltas[-1].finish_reason == "length"
    else:
        assert deltas[-1].finish_reason == "stop" and any(everything[len(text) :].startswith(s) for s in stop)


@settings(max_examples=200, deadline=None)
@given(ids=token_ids, stop=stops, looks=st.sets(st.integers(0, 40)))
def test_scores_begin_inside_the_text_that_was_sent_and_never_behind_it(
    model: TextModel, ids: list[int], stop: list[str], looks: set[int]
) -> None:
    sent = 0
    for delta in run(model, ids, stop, looks, FinishReason.LENGTH):
        sent += len(delta.text)
        assert all(token.text_offset < sent or (token.text_offset == sent and delta.finish_reason == "length") for token in delta.scored)


@settings(max_examples=100, deadline=None)
@given(ids=token_ids, stop=stops, min_tokens=st.integers(0, 10))
def test_no_stop_string_ends_an_output_before_min_tokens(model: TextModel, ids: list[int], stop: list[str], min_tokens: int) -> None:
    choice = Choice(
        0,
        Prompt((5,)),
        model.tokenizer,
        ends=Ends(strings=tuple(stop)),
        bound="max_tokens",
        min_tokens=min_tokens,
        echo=False,
        scores=False,
    )
    for position, event in enumerate(events_of(ids, FinishReason.LENGTH)):
        choice.feed(event, position)
        if choice.ended_here:
            assert choice.num_tokens > min_tokens


def test_a_token_whose_text_is_not_whole_yet_is_something_to_send(model: TextModel) -> None:
    """A stream shows that tokens come, as vLLM's does; their text follows with the last one of the character."""
    ids = model.tokenizer.encode("a\u2603b", add_bos=False)
    choice = Choice(0, Prompt((5,)), model.tokenizer, ends=Ends(), bound="max_tokens", min_tokens=0, echo=False, scores=False)
    deltas = []
    for position, token_id in enumerate(ids):
        choice.feed(SequenceEvent(1, (token_id,)), position)
        deltas.append(choice.drain())
    assert [(delta.num_tokens, delta.is_empty) for delta in deltas] == [(1, False)] * len(ids)
    assert "" in [delta.text for delta in deltas] and "".join(delta.text for delta in deltas) == "a\u2603b"
    assert choice.drain().is_empty


def test_events_after_the_end_change_nothing(model: TextModel) -> None:
    choice = Choice(0, Prompt((5,)), model.tokenizer, ends=Ends(), bound="max_tokens", min_tokens=0, echo=False, scores=False)
    choice.feed(SequenceEvent(1, (33, 2), finish=FinishReason.STOP), 1)
    choice.feed(SequenceEvent(1, (34,)), 2)
    assert choice.drain().text == "1" and choice.num_tokens == 2


def test_an_end_that_nobody_asked_for_is_a_failure_with_the_engines_words(model: TextModel) -> None:
    for finish, message in ((FinishReason.ERROR, "out of pages"), (FinishReason.ABORT, "")):
        choice = Choice(0, Prompt((5,)), model.tokenizer, ends=Ends(), bound="max_tokens", min_tokens=0, echo=False, scores=False)
        choice.feed(SequenceEvent(1, finish=finish, message=message), 1)
        assert choice.failure == (message or "the engine ended this request early")
