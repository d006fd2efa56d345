"""Refuses a body that holds more than any request can use, before it is decoded.

A million numbers, texts or empty lists are decoded and thrown away in a tenth of a second to half a second, in which nobody else's
tokens leave: the event loop is everybody's. Looking takes about a millisecond a megabyte.
"""

import re

from appliance.errors import Invalid

LARGE_BODY_BYTES = 65_536
"""Smaller ones are decoded in less time than it takes to look at them first."""
LEAST_CONTEXT_TOKENS = 1_024
"""The bounds are no tighter for a model with a shorter context: other fields than the prompt are lists, too."""
TEXTS_PER_TOKEN = 16
"""Texts, names of fields among them, for each token of the context: a message has a token at least, and a dozen texts at most."""
LISTS_PER_TOKEN = 4
"""Likewise lists and objects: a message with a few parts."""

_BRACKET = re.compile(rb"[\[\]{}]")


def refuse_crowded_body(raw: bytes, max_model_len: int) -> None:
    """Raises `Invalid` where a list or an object has more plain items than the context has tokens, or all of them are too many."""
    if len(raw) <= LARGE_BODY_BYTES:
        return
    most = max(max_model_len, LEAST_CONTEXT_TOKENS)
    quoted = raw.replace(b"\\\\", b"").replace(b'\\"', b"")  # each quote that is left begins or ends a text
    num_texts = quoted.count(b'"') // 2
    if num_texts > TEXTS_PER_TOKEN * most:
        raise _crowded(f"the body has {num_texts} texts and names of fields", max_model_len)
    outside = b"".join(quoted.split(b'"')[::2])
    num_lists = outside.count(b"[") + outside.count(b"{")
    if num_lists > LISTS_PER_TOKEN * most:
        raise _crowded(f"the body has {num_lists} lists and objects", max_model_len)
    longest = max((between.count(b",") for between in _BRACKET.split(outside)[1:]), default=0) + 1
    if longest > most:
        raise _crowded(f"a list or an object of the body has {longest} items", max_model_len)


def _crowded(what: str, max_model_len: int) -> Invalid:
    message = f"{what}; the context is {max_model_len} tokens, prompt and output together: no request can use so many"
    return Invalid(message, code="context_length_exceeded")
