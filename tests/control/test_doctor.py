"""`fairlane doctor`: each judgement with its remedy, then the command on this machine."""

import asyncio
import json
import socket

import pytest

from appliance.db.revision import Schema, SchemaState
from appliance.doctor import findings as f
from engine.wire import ModelNeeds
from tests.control.test_migrations import REVISIONS, execute

GB = 10**9
NEEDS = ModelNeeds(
    model="m",
    weight_bytes=2 * GB,
    pool_bytes=1 * GB,
    pool_problem="",
    available_bytes=8 * GB,
    total_bytes=16 * GB,
    has_native_kernels=True,
    has_compiler=True,
)
H200 = f.Card("NVIDIA H200", 140 * GB, 141 * GB)
TWO_CARDS = f.Cards((), "580", (H200, H200), "", True)
URL = "http://127.0.0.1:8000"
NO_ROOM = "the KV pool has 3 pages: set max_model_len to at most 48"


def needs(**changes: object) -> ModelNeeds:
    return ModelNeeds(**{name: getattr(NEEDS, name) for name in ModelNeeds.__struct_fields__} | changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("finding", "state", "parts"),
    [
        (f.judge_driver(f.Cards()), "ok", ("runs on the CPU",)),
        (f.judge_driver(f.Cards(("/dev/nvidia0",), error="Driver Not Loaded")), "failed", ("/dev/nvidia0", "--gpus all")),
        (f.judge_driver(f.Cards(("/dev/nvidia0",), "470.1.2", (H200,), "", True)), "failed", ("470.1.2", "525.60")),
        (f.judge_driver(f.Cards((), "580.65.06", (H200,))), "warning", ("not used", "cuda12")),
        (f.judge_driver(f.Cards((), "525.60.13", (H200,), "", True)), "ok", ("NVIDIA H200", "525.60.13")),
        (f.judge_model("there is no such file"), "failed", ("there is no such file",)),
        (f.judge_model(needs(has_native_kernels=False, has_compiler=False)), "warning", ("install g++",)),
        (f.judge_model(needs(has_native_kernels=False)), "ok", ("the next start builds",)),
        (f.judge_model(NEEDS), "ok", ("weights 2.0 GB",)),
        (f.judge_memory(NEEDS, f.Cards()), "ok", ("8.0 GB of 16.0 GB",)),
        (f.judge_memory(needs(available_bytes=3 * GB), f.Cards()), "warning", ("0.0 GB left",)),
        (f.judge_memory(needs(available_bytes=2 * GB), f.Cards()), "failed", ("--kv-cache-memory-bytes",)),
        (f.judge_memory(needs(pool_problem=NO_ROOM), f.Cards()), "failed", (NO_ROOM,)),
        (f.judge_memory(needs(available_bytes=2 * GB), f.Cards(), URL), "ok", ("2.0 GB of 16.0 GB", f"beside {URL}")),
        (f.judge_memory(needs(available_bytes=GB // 2), f.Cards(), URL), "warning", ("0.5 GB", "--kv-cache-memory-bytes")),
        (f.judge_memory(needs(weight_bytes=139 * GB), f.Cards((), "580", (H200,), "", True)), "failed", ("nvidia-smi",)),
        (f.judge_memory(needs(available_bytes=0), f.Cards((), "580", (H200,), "", True)), "ok", ("140.0 GB of 141.0 GB free",)),
        (
            f.judge_memory(needs(weight_bytes=139 * GB, tensor_parallel_size=2), TWO_CARDS),
            "ok",
            ("69.5 GB",),
        ),
        (f.judge_split(needs(tensor_parallel_size=2), TWO_CARDS), "ok", ("2 of 2 cards",)),
        (f.judge_split(needs(tensor_parallel_size=4), TWO_CARDS), "failed", ("--tensor-parallel-size 2",)),
        (f.judge_split(needs(tensor_parallel_size=2), f.Cards()), "warning", ("no card", "XLA_FLAGS")),
        (f.judge_port("127.0.0.1:8000", "", ""), "ok", ("is free",)),
        (f.judge_port("127.0.0.1:8000", "Address already in use", "http://127.0.0.1:8000"), "ok", ("is served from this",)),
        (f.judge_port("127.0.0.1:8000", "Address already in use", ""), "failed", ("already in use", "--port")),
        (f.judge_database("db", "the database does not answer"), "failed", ("does not answer", "FAIRLANE_DATABASE_URL")),
        (f.judge_database("db", "its disk is full: make room"), "failed", ("db: its disk is full", "make room")),
        (f.judge_database("db", Schema(SchemaState.BEHIND, "0001", "0007")), "failed", ("at revision 0001", "`fairlane migrate`")),
        (f.judge_database("db", Schema(SchemaState.CURRENT, "0007", "0007"), -30.0), "warning", ("-30.0 s", "NTP")),
        (f.judge_database("db", Schema(SchemaState.CURRENT, "0007", "0007"), 0.5), "ok", ("0007",)),
        (f.judge_disk("data directory", "/data", 0, "Permission denied"), "failed", ("Permission denied", "user")),
        (f.judge_disk("data directory", "/data", GB // 10, ""), "failed", ("0.1 GB free", "2.0 GB")),
        (f.judge_disk("data directory", "/data", GB, ""), "warning", ("1.0 GB free",)),
        (f.judge_disk("data directory", "/data", 3 * GB, ""), "ok", ("3.0 GB free",)),
        (f.judge_clock(0.0, True), "failed", ("years behind",)),
        (f.judge_clock(f.BUILT_AFTER_S, False), "warning", ("NTP",)),
        (f.judge_clock(f.BUILT_AFTER_S, None), "ok", ("plausible",)),
        (f.judge_open_files(256), "failed", ("ulimit -Hn 8192",)),
        (f.judge_open_files(1_024), "warning", ("ulimit -Hn 8192",)),
        (f.judge_open_files(8_192), "ok", ("8192",)),
    ],
)
def test_what_is_not_fine_comes_with_a_remedy(finding: f.Finding, state: str, parts: tuple[str, ...]) -> None:
    assert finding.state == state
    assert all(part in f"{finding.found} {finding.remedy}" for part in parts), finding
    assert bool(finding.remedy) == (state != "ok")


def found_by(fairlane, *arguments: str) -> tuple[int, dict[str, dict[str, str]]]:
    result = fairlane("doctor", "--json", *arguments)
    return result.exit_code, {each["name"]: each for each in json.loads(result.stdout)}


def test_the_command_examines_this_machine_and_makes_nothing(fairlane, tmp_path):
    code, found = found_by(fairlane, "--port", "0")
    assert code == 0, found
    assert list(found) == [
        "driver", "model files", "memory", "port", "database", "data directory", "compile cache", "clock", "open files"
    ]  # fmt: skip
    assert "smollm2-135m-instruct" in found["model files"]["found"] and "empty" in found["database"]["found"]
    assert list(tmp_path.iterdir()) == []


def test_the_command_tells_what_fails_and_exits_with_1(fairlane, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        fairlane("migrate")
        asyncio.run(execute(f"sqlite+aiosqlite:///{tmp_path / 'fairlane.db'}", "UPDATE alembic_version SET version_num = '9999'"))
        code, found = found_by(fairlane, "--port", str(taken.getsockname()[1]), "--model", "/nowhere")
    assert code == 1
    assert [name for name, each in found.items() if each["state"] == "failed"] == ["model files", "port", "database"]
    assert found["database"]["found"].startswith(f"{tmp_path}/fairlane.db: ")
    assert "no such file" in found["model files"]["remedy"] and "newer Fairlane" in found["database"]["remedy"]
    shown = fairlane("doctor", "--database-url", "postgresql://u:hidden@127.0.0.1:1/none")
    assert shown.exit_code == 1 and "postgresql://127.0.0.1:1/none: the database does not answer" in shown.stdout
    assert "hidden" not in shown.output and "-> start it" in shown.stdout


def test_a_database_on_another_machine_is_asked_for_its_revision_and_clock(fairlane, postgres_server, migrated_postgres):
    _, found = found_by(fairlane, "--database-url", f"{postgres_server}/{migrated_postgres}")
    assert found["database"]["state"] == "ok" and found["database"]["found"].endswith(f"at revision {REVISIONS[-1]}")
