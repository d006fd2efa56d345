"""Fast before slow before batch, and yet nobody for nothing: slow has a share of the prefill tokens, batch a floor."""

from collections.abc import Iterable, Mapping

LANES = ("fast", "slow", "batch")
GUARANTEED = {"slow": 0.25, "batch": 0.05}
"""Of prefill tokens, while the lane has prefill work."""
QUANTUM_TOKENS = 64
"""So many tokens must be owed before a lane goes first: a smaller chunk costs a step almost as much."""
MAX_OWED_TOKENS = 2 * QUANTUM_TOKENS


class LaneShares:
    """What each lane is owed, in prefill tokens."""

    def __init__(self) -> None:
        self._owed = dict.fromkeys(GUARANTEED, 0.0)

    def order(self, lanes: Iterable[str]) -> list[str]:
        """Of the lanes with work: who is owed a quantum first, then by speed. Unknown lanes come last."""
        present = set(lanes)
        known = [lane for lane in LANES if lane in present]
        due = [lane for lane in known if self._owed.get(lane, 0.0) >= QUANTUM_TOKENS]
        return [*due, *(lane for lane in known if lane not in due), *sorted(present.difference(LANES))]

    def note_step(self, tokens: Mapping[str, int], with_work: Iterable[str]) -> None:
        """A step took so many prefill tokens from each lane; `with_work` are those that had some when it was planned."""
        present, total = set(with_work), sum(tokens.values())
        for lane, share in GUARANTEED.items():
            owed = self._owed[lane] + share * total - tokens.get(lane, 0) if lane in present else 0.0
            self._owed[lane] = min(MAX_OWED_TOKENS, max(0.0, owed))
