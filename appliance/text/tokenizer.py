"""Text to token ids and token ids to bytes, from the `tokenizer.json` that the engine exports.

UnsupportedTokenizer     tokens of this file can not be turned into bytes one by one
TextTooLong              a text has more tokens than may be used
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import tokenizers

LONG_TEXT_CHARS = 2_000
"""Longer texts are encoded in a worker thread: at about 1 microsecond a character, streams would feel the pause."""

HEAD_CHARS_PER_TOKEN = 8
"""A text with more characters for each token that may be used is hardly ever short enough: its beginning is looked at first."""
HEAD_GROWTH = 4
"""Where the beginning was short enough, one so many times as long is looked at, and so on."""
SURELY_MORE, SURELY_MORE_TOKENS = 1.1, 16
"""Where a beginning is cut off, its last tokens may be others than in the whole text: it has to be longer by a tenth and so many."""

SPACE_MARK = "\u2581"
"""How SentencePiece vocabularies write a space."""


class UnsupportedTokenizer(Exception):
    """The tokenizer's decoder is of a kind whose tokens have no bytes of their own; the message names it."""


class TextTooLong(Exception):
    """A text has more tokens than may be used: its first `num_chars` characters alone have `num_tokens`."""

    def __init__(self, num_chars: int, num_tokens: int) -> None:
        super().__init__(f"{num_tokens} tokens in the first {num_chars} characters")
        self.num_chars = num_chars
        self.num_tokens = num_tokens


class _AddedToken(msgspec.Struct):
    id: int
    content: str
    special: bool = False


class _TokenizerFile(msgspec.Struct):
    """The parts of `tokenizer.json` that say how tokens become bytes."""

    decoder: dict[str, Any] | None = None
    added_tokens: list[_AddedToken] = []


class Tokenizer:
    """Encodes whole texts; gives each token's bytes, from which a `Detokenizer` makes text."""

    def __init__(
        self, tokenizer: tokenizers.Tokenizer, token_bytes: Sequence[bytes], token_texts: Sequence[str], bos_token_id: int | None
    ) -> None:
        self._tokenizer = tokenizer
        self._bos = () if bos_token_id is None else (bos_token_id,)
        self._token_texts = token_texts
        self.token_bytes = token_bytes
        """Bytes by token id; empty for special tokens, which are no text."""
        self.most_chars_per_token = max(map(len, (*token_bytes, *token_texts)), default=0)
        """No text has more on average."""

    def encode(self, text: str, *, add_bos: bool, most_tokens: int | None = None) -> tuple[int, ...]:
        """Token ids of a text. Markers of special tokens inside it become those tokens.

        Raises:
            TextTooLong: it surely has more than `most_tokens`, as its beginning tells, and the rest was not looked at. One that has hardly
                more is encoded to its end.
        """
        if most_tokens is not None:
            self._refuse_long(text, most_tokens)
        ids = self._ids(text)
        return self._bos + ids if add_bos else ids

    def _refuse_long(self, text: str, most_tokens: int) -> None:
        num_chars = HEAD_CHARS_PER_TOKEN * most_tokens
        while num_chars < len(text):
            num_tokens = len(self._ids(text[:num_chars]))
            if num_tokens > SURELY_MORE * most_tokens + SURELY_MORE_TOKENS:
                raise TextTooLong(num_chars, num_tokens)
            num_chars *= HEAD_GROWTH

    def _ids(self, text: str) -> tuple[int, ...]:
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)  # `encode` would hold the GIL
        return tuple(encoding.ids)

    async def encode_async(self, text: str, *, add_bos: bool, most_tokens: int | None = None) -> tuple[int, ...]:
        """As `encode`; a long text does not hold up the event loop."""
        if len(text) <= LONG_TEXT_CHARS:
            return self.encode(text, add_bos=add_bos, most_tokens=most_tokens)
        return await asyncio.to_thread(self.encode, text, add_bos=add_bos, most_tokens=most_tokens)

    def token_text(self, token_id: int) -> str:
        """One token as people read it, special tokens by their name; half characters show as U+FFFD."""
        return self._token_texts[token_id] if token_id < len(self._token_texts) else ""


def load_tokenizer(folder: Path, *, vocab_size: int, bos_token_id: int | None) -> Tokenizer:
    """Read `tokenizer.json`. `vocab_size` is the model's: ids beyond the tokenizer's own have no bytes.

    Raises:
        UnsupportedTokenizer: see there.
        OSError: the file can not be read.
    """
    raw = (folder / "tokenizer.json").read_bytes()
    described = msgspec.json.decode(raw, type=_TokenizerFile)
    tokenizer = tokenizers.Tokenizer.from_buffer(raw)
    to_bytes = _byte_rule(_decoder_kinds(described.decoder or {}))
    token_bytes = [b""] * vocab_size
    token_texts = [""] * vocab_size
    for token, token_id in tokenizer.get_vocab(with_added_tokens=False).items():
        if token_id < vocab_size:
            token_bytes[token_id] = to_bytes(token)
            token_texts[token_id] = token_bytes[token_id].decode(errors="replace")
    for added in described.added_tokens:
        if added.id < vocab_size:
            token_bytes[added.id] = b"" if added.special else to_bytes(added.content)
            token_texts[added.id] = added.content
    return Tokenizer(tokenizer, token_bytes, token_texts, bos_token_id)


def _decoder_kinds(decoder: dict[str, Any]) -> set[str]:
    """Names of the decoder's steps, those inside a sequence too."""
    inner = (_decoder_kinds(step) for step in decoder.get("decoders", []))
    return {str(decoder.get("type"))}.union(*inner)


def _byte_rule(kinds: set[str]) -> Callable[[str], bytes]:
    """The function from a token's spelling in the vocabulary to its bytes."""
    if "ByteLevel" in kinds:
        return _ByteLevel().bytes_of
    if kinds & {"ByteFallback", "Metaspace"}:
        return _sentencepiece_bytes
    raise UnsupportedTokenizer(f"tokenizer.json has a decoder of {sorted(kinds)}; ByteLevel, ByteFallback and Metaspace are supported")


class _ByteLevel:
    """GPT-2's spelling: each byte is one printable character (Radford et al., `bytes_to_unicode`)."""

    def __init__(self) -> None:
        plain = [*range(ord("!"), ord("~") + 1), *range(ord("\xa1"), ord("\xac") + 1), *range(ord("\xae"), ord("\xff") + 1)]
        moved = [byte for byte in range(256) if byte not in plain]
        self._byte_of = {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(moved)}

    def bytes_of(self, token: str) -> bytes:
        """A token with a character outside the alphabet (an added token) stands for itself, as in `tokenizers`."""
        try:
            return bytes([self._byte_of[char] for char in token])
        except KeyError:
            return token.encode()


def _sentencepiece_bytes(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes([int(token[3:5], 16)])
    return token.replace(SPACE_MARK, " ").encode()
