"""The file of common prefixes: beginnings of prompts that are computed once, before the first request.

- system: You are a helpful assistant of ACME.      # a system prompt, through the chat template
  trust_group: acme                                  # whose tenants may share it
- text: "The contract reads as follows: ..."         # the beginning of a bare prompt
  tenant: legal                                      # for one tenant alone
"""

from itertools import takewhile
from pathlib import Path

import msgspec

from appliance.text.model import TextModel
from engine.wire import CommonPrefix


class PrefixFileError(Exception):
    """The file can not be used; the message says where and what to do."""


class PrefixEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One prefix. Exactly one of `system` and `text`, exactly one of `trust_group` and `tenant`."""

    system: str = ""
    text: str = ""
    trust_group: str = ""
    tenant: str = ""

    @property
    def salt(self) -> str:
        """The prefix-cache namespace of those who may share it, as `Principal.cache_salt`."""
        return f"group:{self.trust_group}" if self.trust_group else f"tenant:{self.tenant}"


def read_prefix_file(path: Path) -> tuple[PrefixEntry, ...]:
    """The file's entries, checked. Raises `PrefixFileError`."""
    try:
        entries = msgspec.yaml.decode(path.read_bytes(), type=tuple[PrefixEntry, ...])
    except OSError as error:
        raise PrefixFileError(f"common_prefixes={str(path)!r} can not be read ({error.strerror}): name a readable YAML file") from error
    except msgspec.DecodeError as error:
        raise PrefixFileError(f"common_prefixes={str(path)!r} is not a list of prefixes: {error}") from error
    for number, entry in enumerate(entries, 1):
        if bool(entry.system) == bool(entry.text) or bool(entry.trust_group) == bool(entry.tenant):
            raise PrefixFileError(
                f"common_prefixes={str(path)!r}, entry {number}: give one of `system` and `text`, and one of `trust_group` and `tenant`"
            )
    return entries


def encode_prefix(entry: PrefixEntry, model: TextModel) -> CommonPrefix:
    """A prefix as tokens. Raises `Invalid` where the model has no chat template, or it takes no system prompt.

    A system prompt's tokens are what two conversations over it have in common, wherever the template puts it.
    """
    if entry.text:
        return CommonPrefix(entry.salt, model.tokenizer.encode(entry.text, add_bos=model.card.add_bos))
    first, second = (
        model.encode_chat_now([{"role": "system", "content": entry.system}, {"role": "user", "content": question}])
        for question in ("Why?", "1 + 1")
    )
    shared = takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
    return CommonPrefix(entry.salt, tuple(token_id for token_id, _ in shared))
