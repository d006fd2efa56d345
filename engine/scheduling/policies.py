"""The policy of a configuration."""

from engine.scheduling.fair_policy import TenantFair
from engine.scheduling.lanes import LaneShares
from engine.scheduling.limits import Limits
from engine.scheduling.policy import ByPriority, FirstComeFirstServed, Policy
from engine.scheduling.tenants import Accounts


def policy_of(limits: Limits, accounts: Accounts) -> Policy:
    """By name: `fcfs`, `priority`, `wrr` or `vtc`. The last two differ in what the accounts count."""
    match limits.scheduling_policy:
        case "fcfs":
            return FirstComeFirstServed()
        case "priority":
            return ByPriority(accounts)
        case _:
            return TenantFair(accounts, LaneShares(limits.lanes), by_deadline=limits.enable_deadline_order)
