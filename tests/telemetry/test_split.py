"""Where a request's time went: the pieces add up, whatever stage it reached."""

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.telemetry.split import Split, server_timing, split
from tests.inference.harness import House

STAMPS = st.lists(st.integers(1, 10**12), min_size=5, max_size=5).map(sorted)


@given(STAMPS, st.integers(0, 3))
def test_the_pieces_add_up_to_the_whole_however_far_a_request_came(stamps: list[int], reached: int) -> None:
    received, *between, ended = stamps
    scheduled, first, last = (stamp if index < reached else 0 for index, stamp in enumerate(between))
    parts = split(received_ns=received, scheduled_ns=scheduled, first_token_ns=first, last_token_ns=last, ended_ns=ended)
    assert parts.total_s == pytest.approx((ended - received) / 1e9, abs=1e-6)
    pieces = [parts.queue_s, parts.prefill_s, parts.decode_s, parts.write_s]
    assert min(pieces) >= 0 and not any(pieces[reached + 1 :])


def test_each_piece_lies_between_its_stamps() -> None:
    stamps = {"received_ns": 1_000, "scheduled_ns": 3_000, "first_token_ns": 7_000, "last_token_ns": 15_000, "ended_ns": 31_000}
    assert split(**stamps) == Split(queue_s=2e-6, prefill_s=4e-6, decode_s=8e-6, write_s=16e-6)
    assert split(**{**stamps, "first_token_ns": 0, "last_token_ns": 0}) == Split(queue_s=2e-6, prefill_s=28e-6, decode_s=0, write_s=0)


def test_a_whole_answer_says_in_a_header_where_its_time_went_and_a_stream_in_its_usage(house: House) -> None:
    body = {"prompt": "x", "max_tokens": 8}
    house.set_engine(step_s=0.02)
    header = house.post("/v1/completions", body).headers["x-fairlane-timing"]
    durations = {name: float(value.removeprefix("dur=")) for name, value in (item.split(";") for item in header.split(", "))}
    assert list(durations) == ["queue", "prefill", "decode"] and 120 < durations["decode"] < 5_000

    answer: httpx.Response = house.post("/v1/completions", {**body, "stream": True, "stream_options": {"include_usage": True}})
    last = answer.text.split("\n\n")[-3]
    assert '"timing":{"queue_ms":' in last and '"decode_ms":' in last


def test_durations_are_written_as_server_timing_writes_them() -> None:
    parts = Split(queue_s=0.0012, prefill_s=0.0305, decode_s=0.25, write_s=9.0)
    assert server_timing(parts) == "queue;dur=1.2, prefill;dur=30.5, decode;dur=250.0"
