"""What of `make gpu-bench` can be checked without a card: its plan, its time, how it resumes, and that its sections run."""

import itertools
import json
import os
import subprocess
from functools import partial
from pathlib import Path

import pytest

from benchmarks.gpu_bench.__main__ import BUDGET_S, SECTIONS, bench_of_card, estimates_s, main, table
from benchmarks.gpu_bench.cards import CARDS
from benchmarks.gpu_bench.clock import Bench, Measurement
from benchmarks.gpu_bench.kernels import decode


@pytest.mark.parametrize("card", CARDS)
def test_the_whole_run_is_estimated_below_its_budget_on_every_card(card: str) -> None:
    estimates = estimates_s(bench_of_card(card))
    assert all(count for count, _ in estimates.values())
    assert 60 < sum(seconds for _, seconds in estimates.values()) < BUDGET_S


def cases(planned: list[Measurement]) -> set[tuple[str, str, int, int]]:
    return {
        (case.backend.name, case.kv_dtype, case.batch, case.context)
        for _, case, _ in (m.run.args for m in planned if isinstance(m.run, partial))
    }


def test_decode_is_measured_at_every_batch_and_context_with_every_backend_of_the_card() -> None:
    sizes = set(itertools.product((1, 16, 64, 256), (1_024, 8_192, 32_768)))
    both = {(name, kv, *size) for name in ("pallas-mosaic", "pallas-triton") for kv in ("bfloat16", "int8") for size in sizes}
    hopper = cases(list(decode(bench_of_card("NVIDIA H200"))))
    assert hopper >= both
    assert hopper - both == {("pallas-triton", "float8_e4m3fn", 64, 8_192)}
    assert cases(list(decode(bench_of_card("NVIDIA A100-SXM4-80GB")))) == {case for case in both if case[0] == "pallas-triton"}


def test_an_estimate_grows_with_the_bytes_and_shrinks_with_the_cards_bandwidth() -> None:
    slow, fast = bench_of_card("NVIDIA A100-SXM4-80GB"), bench_of_card("NVIDIA H200")
    assert slow.estimate_s(2e11) > fast.estimate_s(2e11) > fast.estimate_s(1e11)
    assert Bench((), None).estimate_s(1e11) > 0


def test_a_dry_run_shows_every_section_and_the_total(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--dry-run", "--card", "b200"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in shown] == [*SECTIONS, "all"]
    assert "NVIDIA B200" in shown[-1]


def test_a_section_that_does_not_exist_is_refused_with_those_that_do(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--sections", "decode,speed", "--dry-run"])
    assert "speed: there are correctness, decode" in capsys.readouterr().err


@pytest.mark.parametrize(("part", "count"), [("nvidia", len(CARDS)), ("T4", 0)])
def test_a_card_that_is_not_known_is_refused_with_those_that_are(part: str, count: int, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--dry-run", "--card", part])
    assert f"{part} is in the names of {count} of these cards: {', '.join(CARDS)}" in capsys.readouterr().err


def test_without_a_card_it_ends_and_says_what_can_be_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert all(part in said for part in ("only cpu", "--dry-run", "requirements/cuda12.lock", "GPU_BENCH_PYTHON"))


def made_by_make(*variables: str, path: str = "", target: str = "gpu-bench") -> str:
    """What `make` would run."""
    environment = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}"}
    return subprocess.run(
        ["make", "--no-print-directory", "-n", target, *variables], env=environment, check=True, capture_output=True, text=True
    ).stdout


def test_make_takes_a_python_with_jax_for_the_card_as_it_is_and_where_there_is_a_card_makes_one(tmp_path: Path) -> None:
    own = made_by_make("GPU_BENCH_PYTHON=python3", "GPU_BENCH_FLAGS=--fresh")
    assert own == "python3 -W ignore -m benchmarks.gpu_bench --fresh\n", "nothing is installed, for the machine may reach no registry"
    (tmp_path / "nvidia-smi").touch(mode=0o755)
    made = made_by_make(path=str(tmp_path))
    assert "requirements/cuda12.lock" in made and made.splitlines()[-1].startswith(
        ".venv-cuda/bin/python -W ignore -m benchmarks.gpu_bench"
    )
    assert "requirements/cuda12.lock" in made_by_make(target="cuda-env")


def test_every_section_runs_in_the_interpreter_and_is_not_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--tiny", "--out", str(tmp_path)]
    assert main(arguments) == 0
    kept = {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in SECTIONS}
    assert all(section["rows"] and section["tiny"] for section in kept.values())
    assert {row["kernel"] for row in kept["correctness"]["rows"]} == {"decode", "verify", "prefill", "write"}
    assert [row["pages"] for row in kept["contiguous"]["rows"]] == ["one page", "in order", "scattered"]
    assert [row["queries"] for row in kept["verify"]["rows"]] == [2]
    assert {row["kv_dtype"] for row in kept["prefill"]["rows"]} == {"bfloat16", "int8"}
    (step,) = kept["steps"]["rows"]
    assert step["d2_ms"] > 0 and step["d2_alone_ms"] > 0 and 0 <= step["overhead_percent"] < 100
    capsys.readouterr()
    (tmp_path / "write.json").write_text(json.dumps(kept["write"] | {"device": "another card"}))
    assert main([*arguments, "--sections", "decode,write"]) == 0
    said = capsys.readouterr().out
    assert "decode: done before" in said and "== decode" not in said
    assert "== write" in said and "write: done before" not in said


def test_a_table_has_a_column_for_each_key_and_leaves_out_what_is_not_known() -> None:
    assert table([{"us": 1.5, "share": None}, {"us": 12.25}]).splitlines() == ["   us  share", "  1.5       ", "12.25       "]
