import asyncio
import datetime
import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer as HfTokenizer
from tokenizers import decoders, models

from appliance.errors import Invalid
from appliance.text.model import TextModel
from appliance.text.templates import ChatTemplate
from appliance.text.tokenizer import HEAD_CHARS_PER_TOKEN, HEAD_GROWTH, LONG_TEXT_CHARS, TextTooLong, UnsupportedTokenizer, load_tokenizer

NOW = datetime.datetime(2026, 7, 4, 12, 0, tzinfo=datetime.UTC)


def template(source: str, **special_tokens: str) -> ChatTemplate:
    return ChatTemplate(source, special_tokens, lambda: NOW)


def test_a_conversation_becomes_the_tokens_the_model_was_trained_on(smollm2: TextModel) -> None:
    ids = asyncio.run(smollm2.encode_chat([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]))
    assert "".join(smollm2.tokenizer.token_text(i) for i in ids) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert ids[0] == 1 and ids.count(2) == 2


def test_a_long_text_is_encoded_in_a_thread_to_the_same_tokens(smollm2: TextModel) -> None:
    text = "A line of text. " * (LONG_TEXT_CHARS // 8)
    assert asyncio.run(smollm2.encode_prompt(text)) == smollm2.tokenizer.encode(text, add_bos=False)


@pytest.mark.parametrize("text", ["word " * 100_000, "a" * 500_000, "\u65e5\u672c" * 100_000])
def test_of_a_text_with_far_too_many_tokens_only_the_beginning_is_encoded(smollm2: TextModel, text: str) -> None:
    with pytest.raises(TextTooLong) as refused:
        smollm2.tokenizer.encode(text, add_bos=False, most_tokens=1_000)
    assert refused.value.num_chars <= HEAD_CHARS_PER_TOKEN * 1_000 * HEAD_GROWTH and refused.value.num_tokens > 1_000


@pytest.mark.parametrize("text", ["#" * 60_000, ("\n" + 80 * " ") * 990, " " * 60_000, "word " * 1_000])
def test_a_text_that_packs_much_into_its_tokens_is_encoded_to_its_end(smollm2: TextModel, text: str) -> None:
    ids = smollm2.tokenizer.encode(text, add_bos=False, most_tokens=1_001)
    assert ids == smollm2.tokenizer.encode(text, add_bos=False) and len(ids) <= 1_001
    assert len(text) <= smollm2.tokenizer.most_chars_per_token * len(ids)


@pytest.mark.parametrize("messages", [[("a " * 400_000)], ["a"] * 40_000])
def test_a_long_conversation_leaves_the_event_loop_to_others(smollm2: TextModel, messages: list[str]) -> None:
    async def turns() -> int:
        conversation = [{"role": "user", "content": content} for content in messages]
        encoding = asyncio.create_task(smollm2.encode_chat(conversation))
        count = 0
        while not encoding.done():
            await asyncio.sleep(0.001)  # another request's turn
            count += 1
        return count

    assert asyncio.run(turns()) > 10


def test_many_short_texts_leave_the_event_loop_to_others_too_and_keep_their_order(smollm2: TextModel) -> None:
    texts = [f"{number} is a number. " * 60 for number in range(100)]

    async def read() -> tuple[list[tuple[int, ...]], int]:
        encoding = asyncio.create_task(smollm2.encode_prompts(texts))
        turns = 0
        while not encoding.done():
            await asyncio.sleep(0.001)  # another request's turn
            turns += 1
        return encoding.result(), turns

    token_ids, turns = asyncio.run(read())
    assert token_ids == [smollm2.tokenizer.encode(text, add_bos=False) for text in texts] and turns > 2


def test_a_refusal_of_the_template_reaches_the_client_in_its_words() -> None:
    refusing = template(
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{% endfor %}"
    )
    with pytest.raises(Invalid, match="System role not supported") as caught:
        refusing.render([{"role": "system", "content": "x"}], add_generation_prompt=True)
    assert caught.value.param == "messages"


def test_a_template_gets_what_hugging_face_gives_it() -> None:
    source = (
        "{{ bos_token }}{% for m in messages %}\n{% if loop.index > 2 %}{% break %}{% endif %}\n"
        "{% generation %}{{ m | tojson }}{% endgeneration %}\n{% endfor %}\n{{ strftime_now('%d %b %Y') }}"
    )
    messages = [{"role": "user", "content": "<é>"}] * 3
    assert template(source, bos_token="<s>").render(messages, add_generation_prompt=False) == (
        '<s>{"role": "user", "content": "<é>"}{"role": "user", "content": "<é>"}04 Jul 2026'
    )


@pytest.mark.parametrize("source", ["{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ messages[0] + 1 }}"])
def test_a_template_can_neither_reach_out_nor_change_its_input(source: str) -> None:
    with pytest.raises(Invalid):
        template(source).render([{"role": "user", "content": "x"}], add_generation_prompt=True)


def test_sentencepiece_tokens_are_spaces_bytes_and_text(tmp_path: Path) -> None:
    tokenizer = HfTokenizer(models.BPE(vocab={"\u2581Hi": 0, "<0xE2>": 1, "<0x82>": 2, "<0xAC>": 3}, merges=[]))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(tmp_path, vocab_size=6, bos_token_id=None)
    assert b"".join(loaded.token_bytes).decode() == " Hi€" and loaded.token_bytes[5] == b""


def test_a_tokenizer_whose_tokens_have_no_bytes_is_refused_by_name(tmp_path: Path) -> None:
    tokenizer = HfTokenizer(models.WordPiece(vocab={"a": 0}, unk_token="a"))
    tokenizer.decoder = decoders.WordPiece()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert json.loads((tmp_path / "tokenizer.json").read_text())["decoder"]["type"] == "WordPiece"
    with pytest.raises(UnsupportedTokenizer, match="WordPiece"):
        load_tokenizer(tmp_path, vocab_size=1, bos_token_id=None)
