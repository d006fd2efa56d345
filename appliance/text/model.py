"""Everything about text that the served model brings: its card, its tokenizer, its chat template."""

import asyncio
import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from appliance.errors import Invalid
from appliance.text.templates import ChatTemplate
from appliance.text.tokenizer import LONG_TEXT_CHARS, Tokenizer, load_tokenizer
from engine.wire import ModelCard

MESSAGE_CHARS = 50
"""What rendering a message costs, in characters encoded in the same time."""
NO_TEMPLATE = "this model has no chat template: send a prompt to /v1/completions"


@dataclass(frozen=True, slots=True)
class TextModel:
    """The control plane's half of a model. Who encodes may say how many tokens it can use: a text that surely has more raises
    `TextTooLong`, and only its beginning is looked at."""

    card: ModelCard
    tokenizer: Tokenizer
    template: ChatTemplate | None

    async def encode_prompt(self, text: str, most_tokens: int | None = None) -> tuple[int, ...]:
        """Token ids of a bare prompt."""
        return await self.tokenizer.encode_async(text, add_bos=self.card.add_bos, most_tokens=most_tokens)

    async def encode_prompts(self, texts: Sequence[str], most_tokens: int | None = None) -> list[tuple[int, ...]]:
        """Token ids of each of several bare prompts; `most_tokens` is of each."""

        def encode() -> list[tuple[int, ...]]:
            return [self.tokenizer.encode(text, add_bos=self.card.add_bos, most_tokens=most_tokens) for text in texts]

        if sum(map(len, texts)) <= LONG_TEXT_CHARS:
            return encode()
        return await asyncio.to_thread(encode)

    async def encode_chat(self, messages: Sequence[Mapping[str, Any]], most_tokens: int | None = None) -> tuple[int, ...]:
        """Token ids of a conversation up to where the assistant speaks; the template writes its own bos.

        Raises:
            Invalid: the model has no template, or its template refuses the messages.
        """
        num_chars = sum(len(message["content"]) for message in messages) + len(messages) * MESSAGE_CHARS
        if num_chars <= LONG_TEXT_CHARS:
            return self.encode_chat_now(messages, most_tokens)
        return await asyncio.to_thread(self.encode_chat_now, messages, most_tokens)

    def encode_chat_now(self, messages: Sequence[Mapping[str, Any]], most_tokens: int | None = None) -> tuple[int, ...]:
        """As `encode_chat`, at once: not for the event loop."""
        return self.tokenizer.encode(self._render(messages), add_bos=False, most_tokens=most_tokens)

    def _render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        if self.template is None:
            raise Invalid(NO_TEMPLATE, param="messages", code="no_chat_template")
        return self.template.render(messages, add_generation_prompt=True)


def load_text_model(folder: Path) -> TextModel:
    """Read what the engine exported. Takes some 100 ms for a large vocabulary: call it from a thread.

    Raises:
        OSError, msgspec.DecodeError: a file is missing or broken.
        UnsupportedTokenizer, jinja2.TemplateSyntaxError: the model's text can not be handled.
    """
    card = msgspec.json.decode((folder / "model.json").read_bytes(), type=ModelCard)
    tokenizer = load_tokenizer(folder, vocab_size=card.vocab_size, bos_token_id=card.bos_token_id)
    template = None if card.chat_template is None else ChatTemplate(card.chat_template, card.special_tokens, datetime.datetime.now)
    return TextModel(card, tokenizer, template)
