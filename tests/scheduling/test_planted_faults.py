"""Each property of the design's section 6 finds the fault that was planted for it.

A property is a Hypothesis test that takes the scheduler's type; here the same search runs over the same inputs with a faulty scheduler,
and must end with a failure. `PROPERTIES` is the whole list. Below it are fixed traffics that meet faults the search may miss.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy

from engine.scheduling.budget import GAP_TARGETS
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.simulated import CacheMixup
from engine.wire import Submit, TenantPolicy
from tests.scheduling import faults
from tests.scheduling import test_fairness_properties as fairness
from tests.scheduling import test_properties as conservation
from tests.scheduling.bench import FLOOD, LONG_ANSWERS, SLOW_TPOT_S, Bench, attack_of, quiet_requests, submit
from tests.scheduling.driver import Driver, make_limits
from tests.scheduling.test_fairness_properties import MAX_PLACE, check_isolation, place_behind_short_prompts
from tests.scheduling.traffic import CHAT, TRAFFIC, Arrival, run_traffic


@dataclass(frozen=True)
class Property:
    """As the design says it, the test that holds it, what that draws, and schedulers that break it."""

    said: str
    test: Callable[..., None]
    drawn: Mapping[str, SearchStrategy[Any]]
    broken_by: tuple[type[Scheduler], ...]

    def search(self, scheduler_type: type[Scheduler]) -> None:
        """Raises what the first example raises that breaks it. What is drawn depends on the constants of all modules that are imported, so
        there are more examples than any fault needed so far."""

        @settings(
            max_examples=2_000,
            phases=(Phase.generate,),
            derandomize=True,
            database=None,
            deadline=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        )
        @given(**self.drawn)
        def look(**values: Any) -> None:
            self.test.hypothesis.inner_test(**values, scheduler_type=scheduler_type)  # type: ignore[attr-defined]

        look()


ALONE = conservation.test_overlapped_and_plain_loops_give_every_sequence_the_output_of_running_alone
ISOLATION = fairness.test_a_conformant_tenants_first_token_is_a_few_steps_away_whatever_another_does
STALLS = fairness.test_a_running_decode_never_stalls
PROPERTIES = (
    Property("budget", ISOLATION, fairness.ANY_ATTACK, (faults.TakesNoAccountOfTime,)),
    Property("stall-free decodes", STALLS, fairness.ANY_DECODES, (faults.LeavesDecodesOut,)),
    Property("work conservation", ISOLATION, fairness.ANY_ATTACK, (faults.PrefillsOnlyWithoutDecodes,)),
    Property("work conservation", ALONE, conservation.ANY_TRAFFIC, (faults.AdmitsOneAStep,)),
    Property(
        "VTC gap bound",
        fairness.test_two_backlogged_tenants_are_served_alike_whoever_was_away,
        fairness.TWO_BACKLOGS,
        (faults.NeverLifts,),
    ),
    Property("counters conserved", ALONE, conservation.ANY_TRAFFIC, (faults.NeverRefunds, faults.ChargesPromptsOnly)),
    Property("counters conserved", STALLS, fairness.ANY_DECODES, (faults.NeverLeaves,)),
    Property("isolation of a conformant tenant", ISOLATION, fairness.ANY_ATTACK, (faults.KeepsNoRows,)),
    Property(
        "no starvation",
        fairness.test_nobody_starves_whatever_the_others_priority_and_however_close_to_their_ends_they_are,
        fairness.ANY_PRIORITY,
        (faults.NeverCharges,),
    ),
    Property("page conservation", ALONE, conservation.ANY_TRAFFIC, (faults.LosesPages, faults.ReleasesPagesTwice, faults.LosesHostPages)),
    Property("quotas", ALONE, conservation.ANY_TRAFFIC, (faults.IgnoresCaps, faults.LendsReserves)),
    Property("preemption never of interactive while batch can yield", ALONE, conservation.ANY_TRAFFIC, (faults.PreemptsTheYoungest,)),
    Property(
        "greedy output identical with and without chunking, batching, preemption, prefix cache",
        ALONE,
        conservation.ANY_TRAFFIC,
        (faults.KeepsLateTokens, faults.ForgetsSalts, faults.SharesThePageThatIsWritten, faults.SwapsOutAfterTheStep),
    ),
    Property("determinism", conservation.test_the_same_arrivals_give_the_same_plans, conservation.ONE_TRAFFIC, (faults.PlansByChance,)),
)
SEEN = (AssertionError, CacheMixup, KeyError, ValueError)


@pytest.mark.parametrize(
    ("held", "faulty"), [pytest.param(held, faulty, id=faulty.__name__) for held in PROPERTIES for faulty in held.broken_by]
)
def test_the_search_of_a_property_finds_the_fault_planted_for_it(held: Property, faulty: type[Scheduler]) -> None:
    with pytest.raises(SEEN):
        held.search(faulty)


FAULTS = (
    (faults.KeepsLateTokens, TRAFFIC),
    (faults.LosesPages, TRAFFIC),
    (faults.ReleasesPagesTwice, TRAFFIC),
    (faults.ForgetsSalts, TRAFFIC),
    (faults.SharesThePageThatIsWritten, TRAFFIC),
    (faults.ForksInTheStepThatComputes, TRAFFIC),
    (faults.NeverCopies, TRAFFIC),
    (faults.CachesUncommittedPages, CHAT),
)


SWAPPING = {"num_pages": 20, "max_num_seqs": 8, "swap_pages": 24, "preempt_every_steps": 3}
SWAP_FAULTS = (faults.SwapsOutAfterTheStep, faults.KeepsTokensThatNobodyKnows, faults.LosesHostPages)


@pytest.mark.parametrize("faulty", SWAP_FAULTS)
def test_the_checks_see_a_fault_of_swapping(faulty: type[Scheduler]) -> None:
    limits = make_limits(**SWAPPING)
    with pytest.raises(SEEN):
        run_traffic(Driver(limits, faulty(limits)), TRAFFIC, overlap=True)


def test_the_fixed_traffic_swaps_and_runs_clean() -> None:
    load = run_traffic(Driver(make_limits(**SWAPPING)), TRAFFIC, overlap=True).scheduler.load(0)
    assert load.swapped_out_pages > load.swapped_in_pages > 100


@pytest.mark.parametrize(("faulty", "traffic"), FAULTS)
def test_the_checks_see_a_scheduler_with_a_fault(faulty: type[Scheduler], traffic: list[Arrival]) -> None:
    limits = make_limits(num_pages=20, max_num_seqs=8)
    with pytest.raises(SEEN):
        run_traffic(Driver(limits, faulty(limits)), traffic, overlap=True)


@pytest.mark.parametrize("traffic", [TRAFFIC, CHAT], ids=["traffic", "chat"])
def test_the_checks_see_nothing_where_there_is_no_fault(traffic: list[Arrival]) -> None:
    run_traffic(Driver(make_limits(num_pages=20, max_num_seqs=8)), traffic, overlap=True)


def one_after_the_other() -> list[Submit]:
    """Noisy works for long, then quiet comes back for long: unlifted, it would owe nobody anything."""
    head = [submit(n, "noisy", "slow", 0, 40, 12) for n in range(1, 150)]
    return [*head, *(submit(n, "quiet", "slow", 1200, 40, 12) for n in range(200, 300))]


def test_the_gap_sees_a_missing_lift() -> None:
    for scheduler_type in (Scheduler, faults.NeverLifts):
        bench = Bench(scheduler_type).run(one_after_the_other())
        assert (bench.worst_gap <= bench.gap_bound) == (scheduler_type is Scheduler)


def test_an_idle_engine_sees_a_tenant_that_never_left() -> None:
    with pytest.raises(AssertionError, match="active without sequences"):
        Bench(faults.NeverLeaves).run(quiet_requests())


def test_a_missing_charge_lets_priority_starve_the_others() -> None:
    policies = (TenantPolicy(tenant_id="quiet"), TenantPolicy(tenant_id="noisy", priority=3))
    for scheduler_type in (Scheduler, faults.NeverCharges):
        bench = Bench(scheduler_type)
        bench.scheduler.set_policies(policies)
        assert (place_behind_short_prompts(bench, FLOOD[:1]) < MAX_PLACE) == (scheduler_type is Scheduler)


@pytest.mark.parametrize(
    ("faulty", "message"),
    [(faults.TakesNoAccountOfTime, "takes too long"), (faults.PrefillsOnlyWithoutDecodes, "although a prompt was begun")],
)
def test_the_checks_of_every_step_see_what_it_should_not_hold_or_lacks(faulty: type[Scheduler], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        Bench(faulty, prefill_row_s=6e-4).run([*quiet_requests(), *attack_of(FLOOD)])


def test_the_gaps_see_decodes_that_were_left_out() -> None:
    for scheduler_type in (Scheduler, faults.LeavesDecodesOut):
        bench = Bench(scheduler_type).run(attack_of(FLOOD[:6]))
        gap_ns = max(served.worst_gap_ns for served in bench.simulator.served.values())
        assert (gap_ns <= max(SLOW_TPOT_S * GAP_TARGETS * 1e9, bench.longest_step_ns)) == (scheduler_type is Scheduler)


ISOLATION_FAULTS = (
    (faults.KeepsNoRows, LONG_ANSWERS, {}),
    (faults.MakesNoWay, FLOOD, {"num_pages": 32}),
    (Scheduler, FLOOD, {"scheduling_policy": "fcfs"}),
)


@pytest.mark.parametrize(("faulty", "attack", "changes"), ISOLATION_FAULTS)
def test_isolation_sees_what_it_is_made_of(faulty: type[Scheduler], attack, changes: dict) -> None:
    with pytest.raises(AssertionError, match="waited"):
        check_isolation(Bench(faulty, **changes).run([*quiet_requests(), *attack_of(attack)]))


@pytest.mark.parametrize("faulty", [faults.NeverRefunds, faults.ChargesPromptsOnly])
def test_conservation_sees_what_is_charged_wrongly(faulty: type[Scheduler]) -> None:
    limits = make_limits(num_pages=20, max_num_seqs=8, scheduling_policy="vtc")
    with pytest.raises(AssertionError, match="virtual tokens"):
        run_traffic(Driver(limits, faulty(limits)), TRAFFIC, overlap=True)
