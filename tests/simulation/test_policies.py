"""`--policies`: what an entry leaves out is as for everybody, and what is wrong in it is refused by its place."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from engine.errors import TraceError
from engine.simulation.command import simulate
from engine.simulation.policies import FIELDS, check_tenants, read_policies
from engine.wire import TenantPolicy

BASE = TenantPolicy(tenant_id="", queue_ttl_s=10.0, ttft_s={"fast": 0.5, "slow": 3.0}, tpot_s={"fast": 0.05, "slow": 0.1})


def file_of(folder: Path, content: object) -> Path:
    path = folder / "p.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def report_of(*arguments: str) -> dict:
    done = CliRunner().invoke(simulate, [*arguments, "--json", "-"])
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


def test_the_document_names_every_field():
    document = (Path(__file__).parents[2] / "docs" / "simulate.md").read_text()
    assert all(f"`{name}`" in document for name in FIELDS if name != "tenant_id")


def test_what_an_entry_does_not_name_is_as_for_everybody(tmp_path: Path):
    entries = [{"tenant_id": "a", "weight": 2}, {"tenant_id": "b", "ttft_s": {"fast": 0.3}, "tpot_s": {}, "queue_ttl_s": None}]
    first, second = read_policies(file_of(tmp_path, entries), BASE)
    assert (first.weight, first.ttft_s, first.tpot_s, first.queue_ttl_s) == (2, BASE.ttft_s, BASE.tpot_s, 10.0)
    assert (second.weight, second.ttft_s, second.tpot_s, second.queue_ttl_s) == (1, {"fast": 0.3}, {}, None)


def test_a_policy_that_changes_nothing_leaves_the_report_as_it_was(tmp_path: Path):
    overload = ("--synthetic", "azure", "--tenants", "2", "--requests", "60", "--load", "1.5")
    same = file_of(tmp_path, [{"tenant_id": "client00", "weight": 1}])
    plain, named = report_of(*overload), report_of(*overload, "--policies", str(same))
    assert named["figures"] == plain["figures"]
    assert plain["figures"]["total"]["attainment"] < 1


def test_the_report_tells_a_tenants_own_targets(tmp_path: Path):
    own = file_of(tmp_path, [{"tenant_id": "client00", "ttft_s": {"fast": 0.3}, "tpot_s": {}}, {"tenant_id": "client01", "weight": 2}])
    done = CliRunner().invoke(simulate, ["--synthetic", "azure", "--tenants", "2", "--requests", "5", "--policies", str(own)])
    assert "of client00: TTFT fast 300 ms; TPOT none; whoever can no longer begin in time ends unserved\n" in done.output
    assert "of client01" not in done.output


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ([{"tenant_id": "a"}, {"tenant_id": "b", "weight": -1}], r"p.json: entry 2 \(b\): weight: expected `float` > 0"),
        ([{"tenant_id": "a", "wieght": 2}], r"entry 1 \(a\): wieght is no field .* the fields are tenant_id, weight,"),
        ([{"tenant_id": "a", "rpm": 2}], "rpm is no field that a simulation follows"),
        ([{"tenant_id": "a", "kv_cap_ratio": 1.5}], "kv_cap_ratio: expected `float` <= 1"),
        ([{"tenant_id": "a", "ttft_s": {"fst": 1}}], "ttft_s: 'fst' is no lane; the lanes are fast, slow, batch"),
        ([{"tenant_id": "a", "tpot_s": {"fast": 0}}], r"tpot_s\[...\]: expected `float` > 0"),
        ([{"tenant_id": "a", "weight": "2"}], "weight: expected `float`, got `str`"),
        ([{"weight": 2}], r"entry 1 \(no tenant_id\): tenant_id is missing"),
        ([{"tenant_id": 5}], "tenant_id: expected `str`, got `int`"),
        ([{"tenant_id": "a"}, {"tenant_id": "a"}], r"entry 2 \(a\): the tenant has an entry already"),
        ({"tenant_id": "a"}, "write a list such as"),
        ("[", "write a list such as"),
    ],
)
def test_a_wrong_entry_is_refused_by_its_place(tmp_path: Path, content: object, expected: str):
    with pytest.raises(TraceError, match=expected):
        read_policies(file_of(tmp_path, content), BASE)


def test_a_tenant_that_the_trace_does_not_have_is_refused(tmp_path: Path):
    path = file_of(tmp_path, [{"tenant_id": "clinet00"}])
    done = CliRunner().invoke(simulate, ["--synthetic", "azure", "--tenants", "2", "--requests", "5", "--policies", str(path)])
    assert done.exit_code == 1
    assert "tenant_id 'clinet00' is no tenant of this trace; they are client00, client01" in done.output
    with pytest.raises(TraceError, match=r"t18, t19 and 5 more$"):
        check_tenants(path, read_policies(path, BASE), {f"t{number:02}" for number in range(25)})


def test_a_trace_without_times_is_pointed_to_the_batch_lane(tmp_path: Path):
    trace = tmp_path / "vidur.csv"
    trace.write_text("num_prefill_tokens,num_decode_tokens\n" + "400,100\n" * 60)
    done = CliRunner().invoke(simulate, [str(trace)])
    assert "60 requests, all at once, capacity" in done.output
    assert "take --lane batch, which has no targets" in done.output
    done = CliRunner().invoke(simulate, [str(trace), "--lane", "batch"])
    assert "targets: TTFT none; TPOT none\n" in done.output
    assert "take --lane batch" not in done.output
    assert "100.00%" in done.output
