"""One plain sentence: what became of a request, and what or who took most of its time."""

from collections.abc import Sequence
from dataclasses import dataclass

from appliance.telemetry.explain.gaps import Gap, Preempted

WORTH_NAMING = 0.1
"""Others' work is named from this share of the total on."""

IN_WORDS = {
    "door": "waiting at the door, as many requests of its tenant were refused or its long bodies had no room",
    "receive": "reading the request",
    "tokenize": "tokenising the prompt",
    "admission": "admission",
    "queue": "waiting in the queue",
    "prefill": "computing the prompt",
    "prefill_wait": "waiting between two chunks of its prompt",
    "decode": "decoding",
    "decode_wait": "waiting between two tokens",
    "preempted": "waiting after it was preempted",
    "recompute": "computing again what a preemption threw away",
    "between_steps": "the engine's own work between steps",
    "transfer": "the way from the engine to the answer",
    "detokenize": "turning tokens into text",
    "write": "writing the answer",
    "backpressure": "waiting for the client to read",
    "unrecorded": "steps the ledger no longer has",
}

LOSSES = {
    "memory": "was preempted and computed again",
    "swap": "was preempted and swapped to host memory",
    "slow_reader": "lost its place while its client lagged",
    "forced": "was preempted by the setting `preempt_every_steps`",
}
"""By the cause of a preemption."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the sentence is made of. `parts`: name, cause, seconds."""

    state: str
    message: str
    cause: str
    tenant_id: str
    total_s: float
    ttft_s: float | None
    ttft_target_s: float | None
    generated_tokens: int
    parts: Sequence[tuple[str, str | None, float]]
    worst_gap: Gap | None
    """Of the slow ones."""


def verdict_of(facts: Facts) -> str:
    """The sentence."""
    if facts.state == "rejected":
        return f"Refused after {seconds(facts.total_s)}: {facts.message or 'see the error that was answered'}."
    culprit, taken_s = _worst_other(facts)
    share = taken_s / facts.total_s if facts.total_s else 0.0
    if culprit is not None and share >= WORTH_NAMING:
        where = max((part for part in facts.parts if part[1] == culprit), key=lambda part: part[2])
        who = "other requests of its own tenant" if culprit == facts.tenant_id else _tenant(culprit)
        blame = f"{seconds(taken_s)} of it ({share:.0%}) went to {who}, most of that while {_doing(where[0])}"
    else:
        name, spent_s = _longest_own(facts)
        blame = f"{seconds(spent_s)} of it ({spent_s / facts.total_s if facts.total_s else 0:.0%}) was {IN_WORDS[name]}"
    return f"{_begin(facts)}; {blame}{_lateness(facts)}{_worst_gap(facts)}."


def _worst_other(facts: Facts) -> tuple[str | None, float]:
    sums: dict[str, float] = {}
    for _, cause, duration_s in facts.parts:
        if cause is not None:
            sums[cause] = sums.get(cause, 0.0) + duration_s
    if not sums:
        return None, 0.0
    worst = max(sums, key=lambda cause: sums[cause])
    return worst, sums[worst]


def _longest_own(facts: Facts) -> tuple[str, float]:
    name, _, spent_s = max((part for part in facts.parts if part[1] is None), key=lambda part: part[2], default=("receive", None, 0.0))
    return name, spent_s


def _begin(facts: Facts) -> str:
    took = seconds(facts.total_s)
    match facts.state:
        case "running":
            return f"Running for {took} so far"
        case "cancelled":
            return f"Cancelled ({facts.cause or 'by the client'}) after {took}"
        case "expired" | "failed":
            why = facts.message or facts.cause
            return f"{facts.state.capitalize()} after {took}" + (f" ({why})" if why else "")
        case _:
            return f"Took {took} for {facts.generated_tokens} tokens"


def _lateness(facts: Facts) -> str:
    if facts.ttft_s is None or facts.ttft_target_s is None or facts.ttft_s <= facts.ttft_target_s:
        return ""
    return f"; its first token came after {seconds(facts.ttft_s)}, {seconds(facts.ttft_s - facts.ttft_target_s)} past its target"


def _worst_gap(facts: Facts) -> str:
    gap = facts.worst_gap
    if gap is None:
        return ""
    said = f"; its longest wait for a token was {seconds(gap.seconds)}"
    return said + (f", because it {lost_in_words(gap.preempted[0])}" if gap.preempted else "")


def lost_in_words(preempted: Preempted) -> str:
    """What became of an output that lost its place, and for whom."""
    return LOSSES[preempted.cause] + (f" for {_tenant(preempted.tenant)}" if preempted.tenant is not None else "")


def _doing(name: str) -> str:
    """A part as what the request was doing meanwhile."""
    shared = {"prefill": "its prompt was computed in the same steps", "decode": "its tokens were drawn in the same steps"}
    shared["recompute"] = shared["prefill"]
    return shared.get(name, f"it was {IN_WORDS[name]}" if IN_WORDS[name].startswith("waiting") else IN_WORDS[name])


def _tenant(name: str) -> str:
    return name if name == "another tenant" else f"tenant {name}"


def seconds(value_s: float) -> str:
    """A duration for people."""
    return f"{value_s * 1000:.0f} ms" if value_s < 1 else f"{value_s:.2f} s"
