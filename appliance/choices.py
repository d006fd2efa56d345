"""What msgspec says of a wrong value: where it stands apart, and where a choice is wrong, with the choices that there are."""

import re
from collections.abc import Iterator
from typing import Any

from msgspec import inspect

_NO_CHOICE = re.compile(r"[Ii]nvalid enum value (.+)")
"""As msgspec says it, without the place."""
_AT = re.compile(r" - at `(?P<keys>key` in `)?\$\.?(?P<place>.*)`$", re.DOTALL)
_STEPS = re.compile(r"\[[^\]]*\]|{}|[^.\[\]{}]+")
"""Of a place as msgspec writes it: `messages[0].role`, `ttft_ms[...]`."""
_OF_KEYS = "{}"
"""A step to the keys of a mapping."""


def describe(message: str, kind: Any) -> tuple[str, str]:
    """A `msgspec.ValidationError`'s words about a value of type `kind`, and the place in it that they are about (empty: all of it)."""
    at = _AT.search(message)
    text, place = (message[: at.start()], at["place"]) if at else (message, "")
    return with_choices(text, kind, place + (_OF_KEYS if at and at["keys"] else "")), place


def with_choices(text: str, kind: Any, place: str) -> str:
    """msgspec's words about what stands at `place` of a value of type `kind`; where a choice is wrong, with those that there are."""
    said = _NO_CHOICE.fullmatch(text)
    found = list(dict.fromkeys(_choices(inspect.type_info(kind), _STEPS.findall(place)))) if said else []
    return f"{said[1]} is none of {', '.join(found)}" if said and found else text


def _choices(kind: inspect.Type, steps: list[str]) -> Iterator[str]:
    """What may stand where `steps` lead; nothing where that is no closed set, or nowhere."""
    if isinstance(kind, inspect.Metadata):
        yield from _choices(kind.type, steps)
    elif isinstance(kind, inspect.UnionType):
        for one in kind.types:
            yield from _choices(one, steps)
    elif not steps:
        yield from _values(kind)
    else:
        for inner in _inside(kind, steps[0]):
            yield from _choices(inner, steps[1:])


def _values(kind: inspect.Type) -> Iterator[str]:
    if isinstance(kind, inspect.LiteralType):
        yield from map(str, kind.values)
    elif isinstance(kind, inspect.EnumType):
        yield from (str(one.value) for one in kind.cls)


def _inside(kind: inspect.Type, step: str) -> Iterator[inspect.Type]:
    """The types of what one step leads to."""
    if isinstance(kind, inspect.StructType):
        yield from (field.type for field in kind.fields if field.encode_name == step)
    elif isinstance(kind, inspect.DictType):
        yield kind.key_type if step == _OF_KEYS else kind.value_type
    elif isinstance(kind, inspect.ListType | inspect.SetType | inspect.FrozenSetType | inspect.VarTupleType):
        yield kind.item_type
    elif isinstance(kind, inspect.TupleType):
        yield from kind.item_types
