"""The table of docs/lanes.md says what happens."""

from pathlib import Path

import pytest

from appliance.domain.lanes.decisions import LANES, LaneRules, Wish, propose_lane
from appliance.errors import Forbidden, Invalid
from engine.scheduling.lanes import final_lane
from engine.wire import Sampling, Submit, TenantPolicy

DOCUMENT = Path(__file__).parents[2] / "docs/lanes.md"
RULES = LaneRules()


def rows() -> list[list[str]]:
    """Cells of the last table: what a request is like, and its lane or status."""
    table = DOCUMENT.read_text().rpartition("| --- |")[2]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")]


def lane_of(lane: str, service_tier: str, default_lane: str, allowed: str, streamed: str, to_compute: str, cached: str) -> str:
    """What control plane and scheduler together make of it."""
    lanes = LANES if allowed == "all" else tuple(name.strip() for name in allowed.split(","))
    policy = TenantPolicy(tenant_id="t", lanes=lanes, default_lane=default_lane)
    tokens = int(to_compute) + int(cached)
    wish = Wish(streamed=streamed == "yes", prompt_tokens=tokens, service_tier=service_tier, lane=lane or None)  # pyright: ignore[reportArgumentType]
    try:
        proposal = propose_lane(policy, (), wish, RULES)
    except (Forbidden, Invalid) as refusal:
        return {Forbidden: "403", Invalid: "400"}[type(refusal)]
    submit = Submit(1, "r", "t", proposal.lane, "t", (5,), Sampling(), 1, lane_by_length=proposal.by_length)
    return final_lane(submit, int(to_compute), RULES.fast_prompt_tokens)


def test_the_table_has_every_way_to_a_lane() -> None:
    assert {row[1] for row in rows()} == {"auto", "default", "priority", "flex"} and {row[0] for row in rows()} == {"", *LANES}
    assert {row[-1] for row in rows()} == {*LANES, "400", "403"}


@pytest.mark.parametrize("row", rows(), ids=" ".join)
def test_a_request_of_the_table_gets_the_lane_it_says(row: list[str]) -> None:
    *request, lane = row
    assert lane_of(*request) == lane
