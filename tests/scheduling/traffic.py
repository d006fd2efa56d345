"""Random traffic for tiny pools, one fixed traffic with every kind of trouble, and the loop that runs both."""

import msgspec
from hypothesis import strategies as st

from engine.scheduling.eviction import POLICIES
from engine.wire import Submit
from tests.scheduling.driver import Driver, make_submit, with_quotas

FAMILIES = tuple(tuple(2 + (start + 7 * i * i + i) % 38 for i in range(48)) for start in (0, 11))
"""Two common prefixes that prompts are cut from."""

prompts = st.builds(
    lambda family, length, suffix: FAMILIES[family][:length] + tuple(suffix),
    st.integers(0, 1),
    st.integers(0, 48),
    st.lists(st.integers(2, 39), min_size=1, max_size=4),
)
samplings = st.fixed_dictionaries(
    {
        "max_tokens": st.integers(1, 12),
        "seed": st.integers(0, 2),
        "ignore_eos": st.booleans(),
        "min_tokens": st.just(0),
        "logprobs": st.sampled_from((-1, -1, 2)),
        "prompt_logprobs": st.sampled_from((-1, -1, -1, -1, 0)),
    }
)
lanes = st.sampled_from(("fast", "slow", "batch"))
all_limits = st.fixed_dictionaries(
    {
        "num_pages": st.sampled_from((16, 18, 24, 64)),
        "max_num_seqs": st.sampled_from((1, 4, 8)),
        "max_prefill_rows": st.integers(1, 4),
        "max_num_batched_tokens": st.sampled_from((16, 40, 48, 128)),
        "enable_prefix_caching": st.booleans(),
        "enable_chunked_prefill": st.booleans(),
        "preempt_every_steps": st.sampled_from((0, 0, 1, 3)),
        "scheduling_policy": st.sampled_from(("fcfs", "priority", "wrr", "vtc", "vtc")),
        "eviction_policy": st.sampled_from(tuple(POLICIES)),
        "enable_kv_quota": st.sampled_from((True, True, False)),
        "swap_pages": st.sampled_from((0, 8, 64)),
    }
)
ratios = st.tuples(st.sampled_from((0.0, 0.0, 0.2, 0.5)), st.sampled_from((1.0, 1.0, 0.6, 0.3)))
quotas = st.builds(with_quotas, ratios, ratios)
"""Of the tenants a and b. Reserves count in pools that have more pages than one sequence of the longest length needs."""


def sibling(first: Submit, sequence_id: int, seed: int) -> Submit:
    """One more output of the same prompt."""
    sampling = msgspec.structs.replace(first.sampling, seed=seed)
    return msgspec.structs.replace(first, sequence_id=sequence_id, sampling=sampling, sibling_of=first.sequence_id)


type Arrival = tuple[int, tuple[int, ...], dict, str, int, int]
"""Steps since the arrival before, prompt, sampling, salt, steps until it is aborted (0: never), how many arrivals
back the conversation began that it continues (0: none)."""

traffics = st.lists(
    st.tuples(
        st.integers(0, 3), prompts, samplings, st.sampled_from("ab"), st.sampled_from((0, 0, 0, 1, 2, 5, 9)), st.sampled_from((0, 0, 1, 4))
    ),
    min_size=1,
    max_size=16,
)


def run_traffic(driver: Driver, traffic: list[Arrival], *, overlap: bool) -> Driver:
    aborts: dict[int, list[int]] = {}
    step = 0
    for sequence_id, (gap, prompt, sampling, salt, abort_after, turns_back) in enumerate(traffic, 1):
        for _ in range(gap):
            step += 1
            loop_once(driver, overlap=overlap)
            for due in aborts.pop(step, ()):
                driver.abort(due)
        if turns_back:
            prompt = driver.next_turn(sequence_id - turns_back, prompt[-1:])
        first = make_submit(sequence_id, prompt, salt=salt, lane=("fast", "slow", "batch")[sequence_id % 3], **sampling)
        driver.submit(first)
        for number in (1, 2) if sequence_id % 4 == 0 else ():
            driver.submit(sibling(first, 1000 * number + sequence_id, number))
        if abort_after:
            aborts.setdefault(step + abort_after, []).append(sequence_id)
    for due in sorted(aborts):
        while step < due:
            step += 1
            loop_once(driver, overlap=overlap)
        for sequence_id in aborts[due]:
            driver.abort(sequence_id)
    return driver.run(overlap=overlap)


def loop_once(driver: Driver, *, overlap: bool) -> None:
    started = driver.start_step()
    if driver.num_in_flight and (driver.num_in_flight == 2 or not overlap or not started):
        driver.finish_step()


TRAFFIC: list[Arrival] = [
    (
        int(i % 3 == 0),
        FAMILIES[i // 2 % 2][: 5 + 11 * i % 30] + (2 + i % 38,),
        {"max_tokens": 12 - i % 4, "seed": i % 5, "ignore_eos": i % 4 < 2},
        "ab"[i % 2],
        (0, 0, 4, 0, 0, 0, 1)[i % 7],
        (0, 0, 40)[i % 3],
    )
    for i in range(200)
]
"""One fixed traffic with every kind of trouble."""
CHAT: list[Arrival] = [(20, (2 + i,), {"max_tokens": 1 + i % 4, "ignore_eos": True}, "a", 0, int(i > 0)) for i in range(12)]
"""One conversation, turn after turn."""
