"""The tightest TTFT target of each lane: what its times are shown against."""

from dataclasses import dataclass

from appliance.domain.access.snapshot import AccessSnapshot
from engine.wire import LANES


@dataclass(frozen=True, slots=True)
class Target:
    seconds: float
    tier: str


class TightestTargets:
    """Follows the directory: with 10,000 tenants this is not done once a second."""

    def __init__(self) -> None:
        self.by_lane: dict[str, Target] = {}

    def note(self, snapshot: AccessSnapshot) -> None:
        """Tenants or tiers have changed."""
        found: dict[str, Target] = {}
        for policy in snapshot.policies.values():
            for lane in LANES:
                seconds = policy.ttft_s.get(lane)
                if lane in policy.lanes and seconds is not None and (lane not in found or seconds < found[lane].seconds):
                    found[lane] = Target(seconds, policy.tier)
        self.by_lane = found
