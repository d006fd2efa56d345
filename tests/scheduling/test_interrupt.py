"""A step that is cut short: for whom, at whose cost, and that nothing is lost but time."""

from statistics import mean

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.telemetry.explain.runs import units_of
from engine.scheduling.interrupt import CUT_S, LEAST_GAIN_S, LOST_SHARE, MOST_LOST_S
from engine.scheduling.lanes import rules_of
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.simulated import CacheMixup
from engine.scheduling.step_model import work_of
from engine.wire import NOBODY, EngineConfig, TenantPolicy
from tests.scheduling.bench import FLOOD, MS, POLICIES, Bench, attack_of, attacks, many, quiet_requests, submit
from tests.scheduling.driver import Driver, make_limits, make_submit
from tests.scheduling.traffic import TRAFFIC, Arrival

PREFILL_ROW_MS = 0.7
"""Seven times what it takes in `Bench`."""


def bench_of(scheduler_type: type[Scheduler] = Scheduler, **changes) -> Bench:
    return Bench(scheduler_type, **({"max_step_ms": 45, "prefill_row_s": PREFILL_ROW_MS / 1e3} | changes))


def cut_steps(bench: Bench) -> list[float]:
    """How long each took, in milliseconds."""
    return [(step.ended_ns - step.began_ns) / MS for step in bench.steps if step.record.interrupted_by != NOBODY]


def mean_ttft_ms(bench: Bench) -> float:
    return mean(served.ttft_ns / MS for served in bench.simulator.served.values() if served.submit.tenant_id == "quiet")


def test_a_short_prompt_does_not_wait_for_the_end_of_a_step_of_slow_work() -> None:
    requests = [*quiet_requests(20, 170), *attack_of(FLOOD)]
    cut, whole = (bench_of(max_step_ms=30, enable_step_interrupts=enabled).run(requests) for enabled in (True, False))
    assert len(cut_steps(cut)) > 3 and not cut_steps(whole)
    assert mean_ttft_ms(cut) < mean_ttft_ms(whole) - 6
    assert {step.record.interrupted_for for step in cut.steps if step.record.interrupted_by != NOBODY} == {"quiet"}


# ---- when it is worth it, and when not


def cuts(*, came_ms: float, running: list[tuple], tenant: str = "quiet", lane: str = "fast", policies=POLICIES, **changes) -> bool:
    """Whether a prompt of 16 tokens that comes `came_ms` after everybody else's first step cuts it."""
    bench = bench_of(**changes)
    bench.scheduler.set_policies(policies)
    others = [submit(100 + n, *each) for n, each in enumerate(running)]
    newcomer = msgspec.structs.replace(submit(1, tenant, lane, 0, 16, 4), received_ns=round(came_ms * MS))
    bench.simulator.add([*others, newcomer])
    bench.simulator.run(until_ns=1)
    return bool(cut_steps(bench))


NOISY = [("noisy", "slow", 0, 48, 4)]
NOISY_STEP_MS = 10 + 48 * PREFILL_ROW_MS + 48 * 48 / 2 * 1e-6


def test_it_is_cut_for_a_prompt_of_the_fast_lane_beside_slow_work() -> None:
    assert cuts(came_ms=5, running=NOISY)


@pytest.mark.parametrize(
    ("why", "changes"),
    [
        ("it is almost done", {"came_ms": NOISY_STEP_MS + 1 - (CUT_S + LEAST_GAIN_S) * 1e3}),
        ("the newcomer is in no hurry", {"lane": "slow"}),
        ("somebody else of the fast lane waits for a first token in it", {"running": [*NOISY, ("other", "fast", 0, 4, 4)]}),
        (
            "there is no row for the newcomer",
            {
                "running": [("quiet", "slow", 0, 2, 4), *[("noisy", "slow", 0, 2, 4)] * 3],
                "max_num_seqs": 4,
                "max_prefill_rows": 4,
                "max_num_batched_tokens": 128,
                "max_step_ms": 90,
            },
        ),
        ("there are no pages for the newcomer", {"num_pages": 16}),
        ("tenants are nothing to this policy", {"scheduling_policy": "fcfs"}),
        ("the newcomer is outside its contract", {"policies": (*POLICIES[1:], TenantPolicy(tenant_id="quiet", committed_tpm=10))}),
        ("it is turned off", {"enable_step_interrupts": False}),
    ],
)
def test_a_step_runs_to_its_end_where(why: str, changes: dict) -> None:
    assert not cuts(**({"came_ms": 5, "running": NOISY} | changes)), why


def test_a_step_that_is_cut_short_gives_its_decodes_their_tokens_the_sooner_for_it() -> None:
    """A decode of the fast lane beside a long chunk: the step is short for the newcomer, and for the decode as well."""
    requests = [submit(100, "quiet", "fast", 0, 4, 40), *[submit(200 + n, "noisy", "slow", 40, 48, 2) for n in range(12)]]
    newcomers = [submit(1 + n, "quiet", "fast", 150 + 90 * n, 4, 2) for n in range(5)]
    bench = bench_of().run([*requests, *newcomers])
    cut = [step for step in bench.steps if step.record.interrupted_by != NOBODY]
    assert len(cut) >= 2
    times_ns = bench.simulator.served[100].token_times_ns
    for step in cut:
        assert step.ended_ns in times_ns and step.record.decode_rows and step.record.lost_tokens > 0
        whole_ns = bench.times.seconds(step.plan.bucket, work_of(step.plan)) * 1e9
        assert step.ended_ns - step.began_ns < whole_ns - LEAST_GAIN_S * 1e9 / 2


# ---- what it costs


SHORT_PROMPTS = st.lists(st.integers(0, 25), min_size=30, max_size=120)


@many
@given(gaps_ms=SHORT_PROMPTS, attack=attacks)
def test_at_most_a_tenth_of_the_time_is_lost(gaps_ms: list[int], attack) -> None:
    bench = bench_of()
    short, at_ms = [], 0
    for number, gap_ms in enumerate(gaps_ms):
        at_ms += gap_ms
        short.append(submit(number, "quiet", "fast", at_ms, 3, 1))
    bench.run([*short, *attack_of([("slow", *rest) for _, *rest in attack])])
    assert sum(cut_steps(bench)) / 1e3 <= LOST_SHARE * bench.simulator.now_ns / 1e9 + MOST_LOST_S


def flooded(second_tenant: bool) -> tuple[Bench, float]:
    """A slow neighbour and 9 short prompts a second of one tenant, or of two; and what part of the time was lost."""
    bench = bench_of(enable_prefix_caching=False)
    bench.check_gap = lambda: None  # it knows two tenants
    names = ("quiet", "other") if second_tenant else ("quiet", "quiet")
    short = [submit(number, names[number % 2], "fast", 110 * number + number % 40, 3, 1) for number in range(100)]
    bench.run([*short, *attack_of([("slow", 0, 48, 1, False)] * 200)])
    return bench, sum(cut_steps(bench)) / 1e3 / (bench.simulator.now_ns / 1e9)


def test_a_tenant_may_cost_others_its_share_of_the_time_that_may_be_lost() -> None:
    """Half of it beside one other; two that come take more than one does, whatever it asks for."""
    one, by_one = flooded(second_tenant=False)
    _, by_two = flooded(second_tenant=True)
    most = LOST_SHARE / 2 + MOST_LOST_S / (one.simulator.now_ns / 1e9)
    assert LOST_SHARE / 4 < by_one <= most and by_two > 1.15 * by_one


def test_who_comes_is_charged_for_the_work_that_is_done_again() -> None:
    bench, _ = flooded(second_tenant=False)
    account = bench.scheduler.accounts.of("quiet")
    assert account.lost > 100 and not bench.scheduler.accounts.of("noisy").lost
    served = sum(units_of(share) for step in bench.steps for share in step.record.shares if share.tenant_id == "quiet")
    assert account.counter - account.lifted - account.lost == pytest.approx(served)


# ---- that nothing else is lost


def run_with_cuts(driver: Driver, traffic: list[Arrival]) -> Driver:
    """Every third step is cut short."""
    for sequence_id, (gap, prompt, sampling, salt, *_) in enumerate(traffic, 1):
        for _ in range(gap):
            if driver.start_step():
                driver.cut_step() if len(driver.plans) % 3 == 0 else driver.finish_step()
        driver.submit(make_submit(sequence_id, prompt, salt=salt, lane=("fast", "slow", "batch")[sequence_id % 3], **sampling))
    for _ in range(3000):
        if not driver.start_step():
            driver.check_ended()
            return driver
        driver.cut_step() if len(driver.plans) % 3 == 0 else driver.finish_step()
    raise AssertionError("somebody starves")


class KeepsWhatWasPlanned(Scheduler):
    """As if the chunks of a cut step had been computed."""

    def settle(self, plan, result, now_ns, **cut):
        rows = self._in_flight[0].rows[len(plan.decodes) :]
        events = super().settle(plan, result, now_ns, **cut)
        for row in rows:
            row.sequence.planned_tokens += row.tokens
        return events


class KeepsTheCharge(Scheduler):
    def settle(self, plan, result, now_ns, **cut):
        rows = self._in_flight[0].rows[len(plan.decodes) :]
        events = super().settle(plan, result, now_ns, **cut)
        for row in rows:
            self.accounts.charge(row)
        return events


class ForgetsThatPromptsWereNotDone(Scheduler):
    def settle(self, plan, result, now_ns, **cut):
        rows = self._in_flight[0].rows[len(plan.decodes) :]
        events = super().settle(plan, result, now_ns, **cut)
        for row in rows:
            row.sequence.decoding = True
        return events


class TakesDecodesBack(Scheduler):
    """As if nothing of a cut step were done."""

    def settle(self, plan, result, now_ns, **cut):
        rows = self._in_flight[0].rows[: len(plan.decodes)]
        events = super().settle(plan, result, now_ns, **cut)
        for row in rows:
            self.accounts.refund(row)
            row.sequence.planned_tokens -= row.tokens
        return events


CUT_LIMITS = {"num_pages": 20, "max_num_seqs": 8, "scheduling_policy": "vtc", "swap_pages": 8}


def test_steps_cut_short_change_nobodys_output() -> None:
    driver = run_with_cuts(Driver(make_limits(**CUT_LIMITS)), TRAFFIC)
    assert len(driver.plans) - len(driver.records) > 200


@pytest.mark.parametrize("faulty", [KeepsWhatWasPlanned, KeepsTheCharge, ForgetsThatPromptsWereNotDone, TakesDecodesBack])
def test_the_checks_see_what_a_step_cut_short_should_not_do(faulty: type[Scheduler]) -> None:
    limits = make_limits(**CUT_LIMITS)
    with pytest.raises((AssertionError, CacheMixup, IndexError)):
        run_with_cuts(Driver(limits, faulty(limits)), TRAFFIC)


class CountsWhatWasCutAsDelivered(Scheduler):
    """To the lanes."""

    def settle(self, plan, result, now_ns, **cut):
        lanes = self._roster.queue.lanes  # type: ignore[attr-defined]
        owed = {**lanes._owed}
        events = super().settle(plan, result, now_ns, **cut)
        lanes._owed = owed
        return events


@pytest.mark.parametrize(("scheduler_type", "keeps_it"), [(Scheduler, True), (CountsWhatWasCutAsDelivered, False)])
def test_a_flood_of_short_prompts_leaves_the_slow_lane_its_share(scheduler_type: type[Scheduler], keeps_it: bool) -> None:
    """A quarter of the prefill tokens, although the flood's tenant is owed ten times as much."""
    bench = bench_of(scheduler_type, lanes=rules_of(EngineConfig()), enable_prefix_caching=False)
    bench.scheduler.set_policies([TenantPolicy(tenant_id="quiet", weight=10), TenantPolicy(tenant_id="noisy")])
    flood = [submit(number, "quiet", "fast", 20 * number, 24, 1) for number in range(1, 300)]
    bench.simulator.add([*flood, *attack_of([("slow", 0, 48, 1, False)] * 200)])
    bench.simulator.run(until_ns=6_000 * MS)
    assert len(cut_steps(bench)) > 10
    tokens = {"fast": 0, "slow": 0}
    for step in bench.steps:
        for share in step.record.shares:
            tokens["fast" if share.tenant_id == "quiet" else "slow"] += share.prefill_tokens
    assert (tokens["slow"] / sum(tokens.values()) > 0.22) == keeps_it, tokens
