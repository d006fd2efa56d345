"""What a scenario is made of: who sends what to which server. Values only."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.tail.report import CaseReport


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request at its scheduled time, in seconds from the case's begin."""

    at_s: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """An open loop: requests are sent when they are scheduled, whatever became of the ones before."""

    tenant: str
    tier: str
    arrivals: tuple[Arrival, ...]
    leaves: float = 0.0
    """So large a part of its clients hangs up, at a random moment before `leave_within_s`."""
    leave_within_s: float = 2.0
    overrides: Mapping[str, object] = field(default_factory=dict)
    """Of the tier, for this tenant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """A closed loop: keeps requests in flight until the case ends; whatever is in flight then is abandoned."""

    tenant: str
    tier: str
    in_flight: int
    sizes: tuple[tuple[int, int], ...]
    """Tokens of prompt and output, taken in turn."""
    read_bytes_per_s: int = 0
    """Its clients read so slowly; 0: as fast as it comes."""
    overrides: Mapping[str, object] = field(default_factory=dict)


type Source = Stream | Flight


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One measurement on one server."""

    name: str
    sources: tuple[Source, ...]
    duration_s: float
    flags: tuple[str, ...] = ()
    """Of `fairlane serve`."""
    warm_s: float = 0.0
    """Closed loops run so long before the open ones begin."""
    drain_s: float = 30.0
    """What has not ended so long after the last request was sent counts as failed."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A number of the table, with what it should be. `at_most` says which side is good; without a bar it is only shown."""

    name: str
    value: float | None
    unit: str = ""
    bar: float | None = None
    aim: float | None = None
    at_most: bool = True

    @property
    def verdict(self) -> str:
        """`aim`, `bar`, `misses`, or nothing where there is no bar."""
        if self.value is None or self.bar is None:
            return ""
        for name, bound in (("aim", self.aim), ("bar", self.bar)):
            if bound is not None and (self.value <= bound if self.at_most else self.value >= bound):
                return name
        return "misses"


type Results = Mapping[str, CaseReport]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Cases, and what is read from their reports."""

    name: str
    about: str | None
    cases: Callable[["Setup"], Sequence[Case]]
    figures: Callable[[Results], Sequence[Figure]]
    capacity_of: Callable[["Setup"], tuple[tuple[int, int], ...]] | None = None
    """The mix whose capacity the cases are scaled by: tokens of prompts and outputs."""


@dataclass(frozen=True, slots=True)
class Setup:
    """How long cases may be, and what the machine can do."""

    quick: bool = False
    capacity_rps: float = 0.0
    """Requests of the scenario's own mix a second where there are always more: measured before, on the same server."""
    trace_dir: Path = Path()

    def seconds(self, full_s: float) -> float:
        """A duration, a fifth of it where it has to be quick."""
        return full_s / 5 if self.quick else full_s


def every(interval_s: float, duration_s: float, prompt_tokens: int, output_tokens: int, begin_s: float = 0.0) -> tuple[Arrival, ...]:
    """Evenly spaced requests."""
    return tuple(
        Arrival(begin_s + number * interval_s, prompt_tokens, output_tokens) for number in range(max(1, round(duration_s / interval_s)))
    )


def poisson(
    rate_per_s: float, duration_s: float, prompt_tokens: int, output_tokens: int, seed: int, begin_s: float = 0.0
) -> tuple[Arrival, ...]:
    """Requests at random moments."""
    rng, now_s = random.Random(seed), begin_s
    found: list[Arrival] = []
    while (now_s := now_s + rng.expovariate(rate_per_s)) < begin_s + duration_s:
        found.append(Arrival(now_s, prompt_tokens, output_tokens))
    return tuple(found)


def tenants_of(sources: Iterable[Source]) -> dict[str, Source]:
    """Tenants, each with a source that names its tier and overrides."""
    return {source.tenant: source for source in sources}
