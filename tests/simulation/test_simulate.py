"""`fairlane simulate` as people run it, and the numbers it gives."""

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from engine.errors import ConfigError, TraceError
from engine.scheduling.simulator import Served
from engine.scheduling.tenants import TIE_TOKENS
from engine.simulation.command import simulate
from engine.simulation.figures import Collector, jain_index, quantile
from engine.simulation.machine import DEFAULT_MACHINE, read_machine, write_machine
from engine.simulation.options import OF_THE_DEVICE
from engine.simulation.study import Study, largest_load
from engine.simulation.synthetic import TWINS, synthetic_rows
from engine.simulation.trace import TraceRow
from engine.simulation.workload import Shape
from engine.wire import EngineConfig, Sampling, Submit, TenantPolicy

DOCUMENT = Path(__file__).parents[2] / "docs" / "simulate.md"
POLICY = TenantPolicy(tenant_id="", queue_ttl_s=None, ttft_s={"fast": 0.5, "slow": 3.0}, tpot_s={"fast": 0.05, "slow": 0.1})


def study_of(rows: list[TraceRow], **config) -> Study:
    return Study(rows, read_machine(DEFAULT_MACHINE), EngineConfig(**config), POLICY)


def run_simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "appliance.cli.main", "simulate", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def flood() -> list[TraceRow]:
    """A tenant with 200 long prompts in the first second, and one that asks shortly twice a second."""
    noisy = [TraceRow(number / 200, "noisy", 1500, 64) for number in range(200)]
    return sorted([*noisy, *(TraceRow(1 + number / 2, "quiet", 60, 16) for number in range(60))], key=lambda row: row.arrived_s)


def test_the_policy_decides_what_a_flood_costs_the_quiet_tenant():
    p99_ms = {}
    for policy, step_ms in (("vtc", 30), ("fcfs", 0)):
        figures = study_of(flood(), scheduling_policy=policy, max_step_ms=step_ms).run(Shape())
        assert figures.total.requests == 260
        p99_ms[policy] = next(tenant for tenant in figures.tenants if tenant.tenant == "quiet").ttft.p99_ms
    assert p99_ms["vtc"] < 300
    assert p99_ms["fcfs"] > 10 * p99_ms["vtc"]


@pytest.mark.parametrize("load", [0.5, 1.5])
def test_the_counters_of_waiting_tenants_stay_within_their_bound(load: float):
    study = study_of(list(synthetic_rows(TWINS["arena27"], 400, 0)))
    speed = load * study.capacity_rps(Shape()) / study.trace_rps(Shape())
    figures = study.run(Shape(speed=speed))
    assert figures.vtc_ratio < 1
    assert (figures.vtc_gap > TIE_TOKENS) == (load > 1)  # below, nobody waits for longer than a step
    assert 0 < figures.jain_index <= 1


def test_more_load_means_less_attainment_and_capacity_is_what_a_backlog_gets():
    study = study_of(list(synthetic_rows(TWINS["arena27"], 300, 0)))
    capacity_rps = study.capacity_rps(Shape())
    light, heavy = (study.run(Shape(speed=load * capacity_rps / study.trace_rps(Shape()))) for load in (0.4, 3.0))
    assert light.total.attainment > heavy.total.attainment
    assert heavy.total.requests / heavy.virtual_s == pytest.approx(capacity_rps, rel=0.35)
    assert heavy.total.requests / heavy.virtual_s < 1.1 * capacity_rps


def test_capacity_does_not_count_who_gave_up_waiting():
    rows = list(synthetic_rows(TWINS["arena27"], 200, 0))
    impatient = msgspec.structs.replace(POLICY, queue_ttl_s=1.0)
    study = study_of(rows)
    assert dataclasses.replace(study, base_policy=impatient).capacity_rps(Shape()) == study.capacity_rps(Shape())


def test_attainment_counts_requests_within_both_targets_and_tails_are_in_milliseconds():
    collector = Collector({"a": msgspec.structs.replace(POLICY, tenant_id="a")})
    for number, (ttft_ms, tpot_ms) in enumerate([(100, 10), (600, 10), (100, 60)]):
        submit = Submit(number, "", "a", "fast", "a", (1, 2), Sampling(max_tokens=3), received_ns=0)
        first = ttft_ms * 1_000_000
        times = [first, first + tpot_ms * 1_000_000, first + 2 * tpot_ms * 1_000_000]
        collector.take(Served(submit, times, times[-1], "fast"), last_arrival_ns=0)
    unserved = Submit(9, "", "a", "fast", "a", (1, 2), Sampling(max_tokens=3), received_ns=0)
    collector.take(Served(unserved, [], 5, "fast"), last_arrival_ns=0)
    (tenant,) = collector.tenants()
    assert tenant.attainment == pytest.approx(1 / 4)
    assert (tenant.requests, tenant.expired) == (4, 1)
    assert (tenant.ttft.p50_ms, tenant.ttft.p99_ms, tenant.tpot.p99_ms, tenant.worst_gap_ms) == (100, 600, 60, 60)
    assert tenant.tokens == 15


def test_quantiles_are_of_nearest_rank_and_jains_index_has_its_known_values():
    assert [quantile(range(1, 101), share) for share in (0.5, 0.99, 0.999)] == [50, 99, 100]
    assert jain_index([1, 1, 1, 1]) == 1
    assert jain_index([1, 0, 0, 0]) == 0.25


@pytest.mark.parametrize(("threshold", "first"), [(0.3, 1.0), (1.7, 1.0), (6.2, 0.5)])
def test_the_largest_load_is_found_from_above_and_below(threshold: float, first: float):
    found, trials = largest_load(lambda load: 1.0 if load <= threshold else 0.5, 0.99, first)
    assert found == pytest.approx(threshold, rel=0.02)
    assert found <= threshold
    assert [trial.load for trial in trials] == sorted(trial.load for trial in trials)


def test_where_no_load_holds_the_answer_is_0():
    assert largest_load(lambda _: 0.5, 0.99)[0] == 0.0


def test_a_machine_is_read_as_it_was_written(tmp_path: Path):
    machine = read_machine(DEFAULT_MACHINE)
    write_machine(tmp_path / "machine.json", machine)
    assert read_machine(tmp_path / "machine.json") == machine


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"step_times": {"base_s": {"x9": 1.0}}}, "'x9' is no step's name: write d8 for 8 decode rows"),
        ({"step_times": {"base": 1.0}}, "step_times.base is no number of the step-time model: take machine.json from the folder"),
        ({"num_pages": "many"}, "Expected `int`, got `str`"),
    ],
)
def test_a_broken_machine_file_is_refused_with_a_cure(tmp_path: Path, change: dict, expected: str):
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(json.loads(DEFAULT_MACHINE.read_text()) | change))
    with pytest.raises(TraceError, match=rf"machine.json: .*{expected}"):
        read_machine(path)


def test_rows_that_were_not_measured_are_refused_by_name():
    with pytest.raises(ConfigError, match=r"no step d64: change the rows"):
        study_of(flood(), max_num_seqs=64).run(Shape())


def test_every_setting_of_the_engine_is_a_flag_or_known_to_change_nothing():
    names = {field.name for field in msgspec.structs.fields(EngineConfig)}
    assert names > OF_THE_DEVICE
    shown = CliRunner().invoke(simulate, ["--help"]).output
    assert all("--" + name.replace("_", "-") in shown for name in names - OF_THE_DEVICE)


def test_the_document_and_help_have_the_defaults_and_help_has_the_choices():
    in_document = dict(re.findall(r"^\| `(--[a-z-]+)` \| ([\d. ]+) \|", DOCUMENT.read_text(), re.MULTILINE))
    defaults = {each.opts[0]: each.default if isinstance(each.default, tuple) else (each.default,) for each in simulate.params}
    assert set(in_document) == {"--ttft-ms", "--tpot-ms", "--queue-ttl-s", "--objective", "--seed"}
    assert in_document == {flag: " ".join(f"{value:g}" for value in defaults[flag]) for flag in in_document}
    shown = " ".join(CliRunner().invoke(simulate, ["--help"]).output.split())
    for flag in in_document:
        assert f"[default: {', '.join(map(str, defaults[flag]))}" in shown
    assert "--scheduling-policy [fcfs|priority|wrr|vtc]" in shown


def test_the_command_answers_with_a_table_a_json_document_and_a_plot(tmp_path: Path):
    arguments = ("--synthetic", "arena27", "--requests", "40", "--load", "0.7", "--how-many-more", "--scheduling-policy", "wrr")
    done = run_simulate(*arguments, "--json", str(tmp_path / "out.json"), "--plot", str(tmp_path / "out.png"))
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["requests"] == 40
    assert report["policy"] == "wrr"
    assert report["load"] == pytest.approx(0.7)
    assert "client00" in done.stdout
    assert f"up to load {report['how_many_more']['largest_load']:.2f}" in done.stdout
    assert "the table is of load 0.70" in done.stdout
    assert "targets: TTFT fast 500 ms, slow 3000 ms; TPOT fast 50 ms, slow 100 ms; whoever can no longer begin" in done.stdout
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        ((), 2, "give one of TRACE and --synthetic"),
        (("--synthetic", "azure", "--load", "1", "--speed", "2"), 2, "give one of --load and --speed"),
        (("--synthetic", "azure", "--scheduling-policy", "lifo"), 2, "--scheduling-policy is 'lifo': give one of fcfs, priority, wrr, vtc"),
        (("--synthetic", "azure", "--max-step-ms", "x"), 2, "--max-step-ms is 'x': give a whole number"),
        (("--synthetic", "azure", "--slow-share", "x"), 2, "--slow-share is 'x': give a number"),
        (("--synthetic", "azure", "--decode-buckets", "8,a"), 2, "--decode-buckets is '8,a': give whole numbers with commas between"),
        (("--synthetic", "azure", "--max-num-seqs", "0"), 1, "max_num_seqs is 0: it must be at least 1"),
        (("--synthetic", "azure", "--json", "no-folder/x.json"), 2, "--json no-folder/x.json: it can not be written: give a path in a"),
        (("--synthetic", "azure", "--plot", "no-folder/x.png"), 2, "--plot no-folder/x.png: it can not be written: give a path in a"),
        (("none.csv",), 1, "none.csv: No such file or directory: give the path"),
    ],
)
def test_a_wrong_command_says_what_to_do(arguments: tuple[str, ...], code: int, expected: str):
    done = CliRunner().invoke(simulate, arguments)
    assert (done.exit_code, expected in done.output) == (code, True), done.output
