"""Where samples come from."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import promql_parser as promql

from appliance.promql.errors import Unsupported
from appliance.promql.values import Labels


@dataclass(frozen=True, slots=True)
class Samples:
    """A series as it was sampled: a value for each of the source's times; None: it was not there."""

    labels: Labels
    values: Sequence[float | None]


class Source(Protocol):
    """Samples of all series at the same times."""

    @property
    def times_ms(self) -> Sequence[int]:
        """Milliseconds of the Unix epoch, ascending."""
        ...

    def select(self, name: str, is_wanted: Callable[[Labels], bool]) -> Iterator[Samples]:
        """The series of a name whose labels are wanted. Their labels do not hold the name."""
        ...


def matcher_of(matchers: Sequence[promql.Matcher]) -> Callable[[Labels], bool]:
    """Whether labels match all of these; a label that is not there is an empty one."""
    tests = [(each.name, _test_of(each)) for each in matchers]
    return lambda labels: all(is_match(labels.get(name, "")) for name, is_match in tests)


def _test_of(matcher: promql.Matcher) -> Callable[[str], bool]:
    wanted = matcher.value
    if matcher.op == promql.MatchOp.Equal:
        return lambda value: value == wanted
    if matcher.op == promql.MatchOp.NotEqual:
        return lambda value: value != wanted
    try:
        pattern = re.compile(wanted)
    except re.error as error:
        raise Unsupported(f"{wanted!r} is no regular expression: {error}") from error
    if matcher.op == promql.MatchOp.Re:
        return lambda value: pattern.fullmatch(value) is not None
    return lambda value: pattern.fullmatch(value) is None
