"""A request's time line as pages draw it: one bar of what happened, beneath it whose work that was, and the same facts in words."""

from collections.abc import Mapping
from dataclasses import dataclass

from appliance.telemetry.explain.answer import Explanation
from appliance.telemetry.explain.gaps import Gap
from appliance.telemetry.explain.parts import Part
from appliance.telemetry.explain.timeline import Stretch, Timeline
from appliance.telemetry.explain.verdict import IN_WORDS, lost_in_words

PHASE_KINDS: Mapping[str, str] = {
    "door": "door", "receive": "intake", "tokenize": "intake", "admission": "intake", "queue": "queue", "prefill": "prefill",
    "prefill_wait": "wait", "decode": "decode",
    "decode_wait": "wait", "preempted": "lost", "recompute": "lost", "between_steps": "engine", "transfer": "write",
    "detokenize": "write", "write": "write", "backpressure": "client", "unrecorded": "unknown",
}  # fmt: skip
"""The class that colours a part; parts that are seldom told apart share one."""
KIND_WORDS: Mapping[str, str] = {
    "door": "at the door",
    "intake": "reading, tokenising, admission",
    "queue": "in the queue",
    "prefill": "computing the prompt",
    "wait": "waiting for a turn",
    "decode": "decoding",
    "lost": "after a preemption",
    "engine": "engine between steps",
    "write": "writing the answer",
    "client": "waiting for the client",
    "unknown": "no longer recorded",
}
NUM_OTHERS = 4
"""Tenants with a colour of their own; more of them share the last."""


@dataclass(frozen=True, slots=True)
class Box:
    """A stretch of the bar. `x` and `width` are percent of it, `title` is what the pointer reads."""

    kind: str
    x: float
    width: float
    title: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment on the bar."""

    kind: str
    x: float
    title: str


@dataclass(frozen=True, slots=True)
class Key:
    """An entry of the legend."""

    kind: str
    label: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Row:
    """A part in words."""

    part: Part
    words: str
    kind: str
    ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """All that the template needs."""

    explanation: Explanation
    tenant: str
    phases: list[Box]
    owners: list[Box]
    gaps: list[Box]
    marks: list[Mark]
    ticks: list[Mark]
    phase_keys: list[Key]
    owner_keys: list[Key]
    rows: list[Row]

    @property
    def is_running(self) -> bool:
        return self.explanation.state == "running"


def drawing_of(timeline: Timeline, tenant: str) -> Drawing:
    """The drawing of a request of a tenant."""
    explanation = timeline.explanation
    total_s = explanation.total_s or 1e-9
    owner_kinds = _owner_kinds(explanation, tenant)
    return Drawing(
        explanation=explanation,
        tenant=tenant,
        phases=[_box(PHASE_KINDS[each.label], each, total_s, IN_WORDS[each.label]) for each in timeline.phases],
        owners=[_box(owner_kinds[each.label], each, total_s, _owner(each.label, tenant)) for each in timeline.owners],
        gaps=[_gap(gap, total_s, tenant) for gap in explanation.gaps],
        marks=list(_marks(explanation, total_s)),
        ticks=list(_ticks(total_s)),
        phase_keys=_phase_keys(explanation),
        owner_keys=_owner_keys(explanation, owner_kinds, tenant),
        rows=[Row(part, IN_WORDS[part.name], PHASE_KINDS[part.name], part.seconds / total_s) for part in explanation.parts],
    )


def _box(kind: str, stretch: Stretch[str] | Stretch[str | None], total_s: float, words: str) -> Box:
    title = f"{words}: {_seconds(stretch.seconds)}, from {_seconds(stretch.at_s)} on"
    return Box(kind, round(stretch.at_s / total_s * 100, 3), round(stretch.seconds / total_s * 100, 3), title)


def _gap(gap: Gap, total_s: float, tenant: str) -> Box:
    begin_s = gap.at_s - gap.seconds
    title = f"no token for {_seconds(gap.seconds)}: most of it {IN_WORDS[gap.name]}, {_owner(gap.tenant, tenant)}"
    title += f", step {gap.step}" if gap.step is not None else ""
    title += "".join(f"; it {lost_in_words(each)}" for each in gap.preempted)
    return Box("gap", round(begin_s / total_s * 100, 3), round(gap.seconds / total_s * 100, 3), title)


def _marks(explanation: Explanation, total_s: float) -> list[Mark]:
    """The first token, and where it should have been at the latest."""
    marks: list[Mark] = []
    target_s, ttft_s = explanation.ttft_target_s, explanation.ttft_s
    if target_s is not None and target_s <= total_s:
        marks.append(Mark("target", round(target_s / total_s * 100, 3), f"TTFT target {_seconds(target_s)}"))
    if ttft_s is not None:
        marks.append(Mark("first", round(min(1.0, ttft_s / total_s) * 100, 3), f"first token after {_seconds(ttft_s)}"))
    return marks


def _ticks(total_s: float) -> list[Mark]:
    """Three to six round times."""
    step_s = 10.0**-9
    while step_s * 10 < total_s:
        step_s *= 10
    step_s = next(step for step in (step_s / 5, step_s / 2, step_s, step_s * 2, step_s * 5) if total_s / step < 6)
    return [
        Mark("tick", round(number * step_s / total_s * 100, 3), _seconds(number * step_s)) for number in range(int(total_s / step_s) + 1)
    ]


def part_words(name: str) -> str:
    """What a part is called on pages."""
    return IN_WORDS[name]


def _owner_kinds(explanation: Explanation, tenant: str) -> dict[str | None, str]:
    """Colours by tenant: those that took most have one of their own."""
    sums: dict[str, float] = {}
    for part in explanation.parts:
        if part.tenant is not None and part.tenant != tenant:
            sums[part.tenant] = sums.get(part.tenant, 0.0) + part.seconds
    others = sorted(sums, key=lambda name: -sums[name])
    kinds: dict[str | None, str] = {None: "own", tenant: "sibling"}
    return kinds | {name: f"other{min(place, NUM_OTHERS)}" for place, name in enumerate(others, 1)}


def _owner(owner: str | None, tenant: str) -> str:
    if owner is None:
        return "its own time"
    return "other requests of its tenant" if owner == tenant else f"work of {owner}"


def _phase_keys(explanation: Explanation) -> list[Key]:
    sums: dict[str, float] = {}
    for part in explanation.parts:
        kind = PHASE_KINDS[part.name]
        sums[kind] = sums.get(kind, 0.0) + part.seconds
    return [Key(kind, KIND_WORDS[kind], sums[kind]) for kind in KIND_WORDS if kind in sums]


def _owner_keys(explanation: Explanation, kinds: Mapping[str | None, str], tenant: str) -> list[Key]:
    sums: dict[str | None, float] = {}
    for part in explanation.parts:
        sums[part.tenant] = sums.get(part.tenant, 0.0) + part.seconds
    return [
        Key(kinds[owner], _owner(owner, tenant), sums[owner]) for owner in sorted(sums, key=lambda owner: (owner is not None, -sums[owner]))
    ]


def _seconds(value_s: float) -> str:
    if not value_s:
        return "0"
    return f"{value_s * 1000:.4g} ms" if value_s < 1 else f"{value_s:.4g} s"
