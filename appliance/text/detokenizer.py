"""Token ids to text, a token at a time."""

import codecs
from collections.abc import Iterable, Sequence

MAX_CHAR_BYTES = 4


class Detokenizer:
    """Text of a growing token sequence. A character comes out when its last byte is there, never in halves.

    Each token costs its own bytes only. Bytes that no continuation can make valid become U+FFFD, as in
    `bytes.decode(errors="replace")`, so the pieces joined are the whole sequence decoded at once.
    """

    def __init__(self, token_bytes: Sequence[bytes], prompt_tail: Iterable[int] = ()) -> None:
        """`prompt_tail`: the prompt's last tokens, in case they end inside a character that the output completes."""
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for token_id in prompt_tail:
            self.push(token_id)

    def push(self, token_id: int) -> str:
        """The text that this token completes; empty while a character is incomplete, and for special tokens."""
        return self._decoder.decode(self._token_bytes[token_id])

    def flush(self) -> str:
        """What is left at the end: U+FFFD for an incomplete character, else nothing."""
        return self._decoder.decode(b"", final=True)
