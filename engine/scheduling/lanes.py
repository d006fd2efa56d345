"""Fast before slow before batch, and yet nobody for nothing: slow has a share of the prefill tokens, batch a floor.

Also what a lane bounds (`LaneRule`), and the last word on which lane a sequence is in.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from engine.wire import LANES, EngineConfig, Submit, TenantPolicy

QUANTUM_TOKENS = 64
"""So many tokens must be owed before a lane goes first: a smaller chunk costs a step almost as much."""
MAX_OWED_TOKENS = 2 * QUANTUM_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneRule:
    """One lane's bounds. 0 is "no bound"; they hold under the policies that know lanes (vtc, wrr)."""

    share: float = 0.0
    """Of prefill tokens, guaranteed while the lane has prefill work."""
    prefill_rows: int = 0
    """Most of its prompts in one step."""
    open_prefills: int = 0
    """Most of its prompts begun and not computed to the end; a tenant that has none there may always begin one."""
    max_wait_targets: float = 0.0
    """Longest wait for the first step, in TTFT targets: whoever waited longer would be late, and ends unserved."""


NO_RULE = LaneRule()
DEFAULT_SHARES: Mapping[str, LaneRule] = {"slow": LaneRule(share=0.25), "batch": LaneRule(share=0.05)}


def rules_of(config: EngineConfig) -> dict[str, LaneRule]:
    """Each lane's rule as configured. Fast needs no share: it goes first."""
    return {
        lane: LaneRule(
            share=getattr(config, f"{lane}_share") if lane != "fast" else 0.0,
            prefill_rows=getattr(config, f"{lane}_prefill_rows"),
            open_prefills=getattr(config, f"{lane}_open_prefills"),
            max_wait_targets=getattr(config, f"{lane}_max_wait_targets"),
        )
        for lane in LANES
    }


def final_lane(submit: Submit, uncached_tokens: int, fast_prompt_tokens: int) -> str:
    """Where the proposal leaves it to the scheduler, what is left to compute decides: a long prompt that is cached goes fast."""
    if not submit.lane_by_length:
        return submit.lane
    return "fast" if uncached_tokens <= fast_prompt_tokens else "slow"


def latest_start_ns(submit: Submit, policy: TenantPolicy, rule: LaneRule) -> int:
    """When its first step must have begun; 0 where it may wait for ever: no target, no bound, or a tenant whose requests wait however
    long it takes (no queue limit) or are only counted (shadow mode), and what admission has promised to serve."""
    target_s = policy.ttft_s.get(submit.lane)
    if submit.is_promised or target_s is None or not rule.max_wait_targets or policy.queue_ttl_s is None or policy.shadow_mode:
        return 0
    return submit.received_ns + round(rule.max_wait_targets * target_s * 1e9)


class LaneShares:
    """What each lane is owed, in prefill tokens."""

    def __init__(self, rules: Mapping[str, LaneRule] = DEFAULT_SHARES) -> None:
        self.rules = rules
        self._shares = {lane: rule.share for lane, rule in rules.items() if rule.share}
        self._owed = dict.fromkeys(self._shares, 0.0)
        self._owed_before = self._owed
        """The step noted last."""

    def order(self, lanes: Iterable[str]) -> list[str]:
        """Of the lanes with work: who is owed a quantum first, then by speed. Unknown lanes come last."""
        present = set(lanes)
        due = self.due(present)
        return [*due, *(lane for lane in LANES if lane in present and lane not in due), *sorted(present.difference(LANES))]

    def due(self, lanes: Collection[str]) -> list[str]:
        """Of the lanes with work those that are owed a quantum, by speed."""
        return [lane for lane in LANES if lane in lanes and self._owed.get(lane, 0.0) >= QUANTUM_TOKENS]

    def note_step(self, tokens: Mapping[str, int], with_work: Iterable[str]) -> None:
        """A step took so many prefill tokens from each lane; `with_work` are those that had some when it was planned."""
        self._owed_before = {**self._owed}
        present, total = set(with_work), sum(tokens.values())
        for lane, share in self._shares.items():
            owed = self._owed[lane] + share * total - tokens.get(lane, 0) if lane in present else 0.0
            self._owed[lane] = min(MAX_OWED_TOKENS, max(0.0, owed))

    def take_back_step(self) -> None:
        """The step noted last was cut short: nobody got its tokens."""
        self._owed = self._owed_before
