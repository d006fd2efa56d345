from hypothesis import assume, given, settings
from hypothesis import strategies as st

from appliance.text.detokenizer import Detokenizer
from appliance.text.model import TextModel

EMOJI = "naïve 😀👩‍👩‍👧‍👦 日本語 العربية ð"
token_ids = st.lists(st.integers(0, 49_151), max_size=60)


def pieces_of(model: TextModel, ids: list[int] | tuple[int, ...]) -> list[str]:
    detokenizer = Detokenizer(model.tokenizer.token_bytes)
    return [*(detokenizer.push(token_id) for token_id in ids), detokenizer.flush()]


@settings(max_examples=300, deadline=None)
@given(ids=token_ids)
def test_pieces_joined_are_the_whole_sequence_decoded_at_once(smollm2: TextModel, ids: list[int]) -> None:
    whole = b"".join(smollm2.tokenizer.token_bytes[token_id] for token_id in ids).decode(errors="replace")
    assert "".join(pieces_of(smollm2, ids)) == whole


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=80))
def test_text_through_the_tokenizer_and_back_is_unchanged_and_no_piece_has_a_broken_character(smollm2: TextModel, text: str) -> None:
    known = {raw[0] for raw in smollm2.tokenizer.token_bytes if len(raw) == 1}
    assume(set(text.encode()) <= known)  # the vocabulary lacks the tokens of a few bytes, 0xF1 for one
    pieces = pieces_of(smollm2, smollm2.tokenizer.encode(text, add_bos=False))
    assert "".join(pieces) == text
    assert any("\ufffd" in piece for piece in pieces) == ("\ufffd" in text)


def test_a_character_of_several_tokens_comes_out_whole_with_its_last_token(smollm2: TextModel) -> None:
    ids = smollm2.tokenizer.encode(EMOJI, add_bos=False)
    pieces = pieces_of(smollm2, ids)
    assert len(ids) > len(EMOJI.split()) and "" in pieces
    assert "".join(pieces) == EMOJI
    assert not any("\ufffd" in piece for piece in pieces)


def test_bytes_that_are_no_character_show_at_the_end(smollm2: TextModel) -> None:
    first_half = next(i for i, raw in enumerate(smollm2.tokenizer.token_bytes) if raw == b"\xf0")
    assert pieces_of(smollm2, [first_half]) == ["", "\ufffd"]


def test_output_completes_a_character_that_the_prompt_began(smollm2: TextModel) -> None:
    table = [b"a", "é".encode()[:1], "é".encode()[1:]]
    detokenizer = Detokenizer(table, prompt_tail=[0, 1])
    assert detokenizer.push(2) + detokenizer.flush() == "é"


def test_special_tokens_are_no_text(smollm2: TextModel) -> None:
    assert pieces_of(smollm2, [1, 2]) == ["", "", ""]
    assert smollm2.tokenizer.token_text(2) == "<|im_end|>"
