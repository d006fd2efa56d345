"""Traces as they are published, and what is said of broken ones."""

from pathlib import Path

import pytest

from engine.errors import TraceError
from engine.simulation.synthetic import TWINS, synthetic_rows
from engine.simulation.trace import TraceRow, read_trace
from engine.simulation.workload import Shape, prompt_of, shaped

ARENA = "arrived_at_s,tenant,prompt_tokens,output_tokens\n"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def file_of(tmp_path: Path, text: str, name: str = "trace.csv") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_rows_come_in_order_of_arrival_and_the_first_at_0(tmp_path: Path):
    rows = read_trace(file_of(tmp_path, ARENA + "7.5,b,3,4\n5.0,a,0,2\n"))
    assert rows == [TraceRow(0.0, "a", 1, 2), TraceRow(2.5, "b", 3, 4)]


def test_an_azure_trace_has_times_of_day_and_no_tenants(tmp_path: Path):
    rows = read_trace(file_of(tmp_path, AZURE + "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:18:04.4799600,34,12\n"))
    assert [(round(row.arrived_s, 3), row.tenant, row.prompt_tokens, row.output_tokens) for row in rows] == [
        (0.0, "", 4808, 10),
        (60.5, "", 34, 12),
    ]


def test_a_vidur_trace_comes_all_at_once(tmp_path: Path):
    rows = read_trace(file_of(tmp_path, "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n10,5,15,2\n20,6,26,3\n"))
    assert [(row.arrived_s, row.prompt_tokens, row.output_tokens) for row in rows] == [(0.0, 10, 5), (0.0, 20, 6)]


def test_mooncake_rows_of_one_moment_are_spread_over_their_bin_and_equal_blocks_are_equal_tokens(tmp_path: Path):
    line = '{"timestamp": %d, "input_length": 1100, "output_length": 5, "hash_ids": [%s]}\n'
    rows = read_trace(file_of(tmp_path, line % (0, "0, 1, 2") + line % (0, "0, 3, 4") + line % (3000, "9, 1, 2"), "trace.jsonl"))
    assert [row.arrived_s for row in rows] == [0.0, 1.5, 3.0]
    first, second, third = (prompt_of(row, number, 1000) for number, row in enumerate(rows))
    assert [len(prompt) for prompt in (first, second, third)] == [1100] * 3
    assert first[:512] == second[:512] != third[:512]
    assert first[512:1024] != second[512:1024]
    assert first[512:1024] == third[512:1024]


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        (ARENA + "0,a,5,x\n", "t.csv", r"t.csv:2: output_tokens is 'x': write a whole number"),
        (ARENA + "0,a,5,1\n1,a,-5,1\n", "t.csv", r"t.csv:3: prompt_tokens is -5: .* 0 or more"),
        (ARENA + "nan,a,5,1\n", "t.csv", r"t.csv:2: arrived_at_s is 'nan': .* 0 or more"),
        (ARENA + "soon,a,5,1\n", "t.csv", r"t.csv:2: arrived_at_s is 'soon': write seconds"),
        (ARENA + "0,a\n", "t.csv", r"t.csv:2: the line has fewer values than the header's 4 columns"),
        (AZURE + "yesterday,5,1\n", "t.csv", r"t.csv:2: TIMESTAMP is 'yesterday': write a time as"),
        ("time,who\n1,2\n", "t.csv", r"t.csv:1: the columns time,who are no known format: a header has arrived_at_s"),
        ("", "t.csv", r"t.csv:1: the columns \(none\) are no known format"),
        (ARENA, "t.csv", r"t.csv: it has no requests: at least one row"),
        ('{"timestamp": 1}\n', "t.jsonl", r"t.jsonl:1: Object missing required field `input_length`"),
        ('{"timestamp": 1, "input_length": -1, "output_length": 1}\n', "t.jsonl", r"t.jsonl:1: .* is below 0"),
        ("\n[1\n", "t.jsonl", r"t.jsonl:2: .*: a line is an object with timestamp"),
    ],
)
def test_a_broken_trace_is_refused_with_its_line_and_a_cure(tmp_path: Path, text: str, name: str, expected: str):
    with pytest.raises(TraceError, match=expected):
        read_trace(file_of(tmp_path, text, name))


def test_a_file_that_is_no_text_or_not_there_is_refused(tmp_path: Path):
    (tmp_path / "trace.csv").write_bytes(b"\x1f\x8b\xff\xfe")
    with pytest.raises(TraceError, match=r"not UTF-8 text: unpack it"):
        read_trace(tmp_path / "trace.csv")
    with pytest.raises(TraceError, match=r"none.csv: No such file or directory: give the path"):
        read_trace(tmp_path / "none.csv")


def test_a_trace_is_repeated_sped_up_shortened_and_dealt_to_tenants():
    rows = [TraceRow(0.0, "", 100, 40), TraceRow(10.0, "", 6000, 80)]
    shape = Shape(speed=2.0, num_requests=5, num_tenants=3, length_divisor=10.0)
    found = list(shaped(rows, shape, max_model_len=512))
    assert [row.arrived_s for row in found] == [0.0, 5.0, 10.0, 15.0, 20.0]
    assert [(row.prompt_tokens, row.output_tokens) for row in found[:2]] == [(10, 4), (504, 8)]
    assert {row.tenant for row in found} <= {"client00", "client01", "client02"}


def test_a_prompt_longer_than_the_context_is_cut_so_that_its_output_fits():
    (row,) = shaped([TraceRow(0.0, "a", 9000, 200)], Shape(), max_model_len=512)
    assert (row.prompt_tokens, row.output_tokens) == (312, 200)


@pytest.mark.parametrize(("name", "prompt_p50", "output_p50"), [("arena27", 40, 211), ("azure", 1020, 129)])
def test_a_twin_has_the_rate_and_the_medians_of_its_trace_and_is_the_same_for_a_seed(name: str, prompt_p50: int, output_p50: int):
    twin = TWINS[name]
    rows = list(synthetic_rows(twin, 4000, seed=1))
    assert rows == list(synthetic_rows(twin, 4000, seed=1)) != list(synthetic_rows(twin, 4000, seed=2))
    assert len(rows) / rows[-1].arrived_s == pytest.approx(twin.requests_per_s, rel=0.1)
    assert sorted(row.prompt_tokens for row in rows)[2000] == pytest.approx(prompt_p50, rel=0.15)
    assert sorted(row.output_tokens for row in rows)[2000] == pytest.approx(output_p50, rel=0.15)
    assert len({row.tenant for row in rows}) == max(1, twin.num_tenants)
