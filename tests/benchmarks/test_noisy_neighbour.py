"""What the noisy neighbour got in the time that is measured."""

import asyncio

import pytest

from benchmarks.load import Outcome
from benchmarks.noisy_neighbour import NEIGHBOUR_OUTPUT_TOKENS, Neighbour
from benchmarks.sse_client import Endpoint
from tests.benchmarks.test_load import completion_server


async def test_a_neighbours_tokens_count_when_they_come_whenever_its_requests_end():
    neighbour = Neighbour(Endpoint("http://127.0.0.1:1", "m"), in_flight=0, seed=1)
    for start in (-2.0, 8.0, 20.0):  # tokens before the time and in it, in it and behind it, behind it
        times = [start + number for number in range(4)]
        neighbour.outcomes.append(Outcome(start, start, times, times[-1], 100, 40))
    neighbour.outcomes.append(Outcome(1.0, 1.0, [2.0], 2.0, 100, 40, error="the connection broke"))
    found = neighbour.tokens_per_s(0.0, 9.5)
    assert found == {"prompt_tok_s": pytest.approx(100 / 9.5), "output_tok_s": pytest.approx((20 + 20) / 9.5)}


async def test_what_a_neighbour_has_in_flight_when_it_stops_is_waited_for_or_abandoned():
    async with completion_server() as endpoint:
        waits = Neighbour(endpoint, in_flight=3, seed=1)
        await asyncio.sleep(0)  # each of the three has begun, and has no answer
        await waits.stop(drain_s=30.0)
        leaves = Neighbour(endpoint, in_flight=3, seed=2)
        await asyncio.sleep(0)
        await leaves.stop()
    assert [(outcome.error, outcome.completion_tokens) for outcome in waits.outcomes] == [("", NEIGHBOUR_OUTPUT_TOKENS)] * 3
    assert not leaves.outcomes
