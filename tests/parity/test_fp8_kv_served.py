"""KV in fp8 where no card is: the tiny model served on `xla`, which takes what a CPU's other backend does not and stands in for a GPU's."""

import json
from pathlib import Path

import httpx

from engine.model.source import open_source
from tests.appliance import start_appliance
from tests.e2e.metrics import metric
from tests.parity.served import ask_alone, ask_together, greedy, prompt_of, texts

FEW_BUCKETS = ("--decode-buckets", "8", "--prefill-buckets", "64", "--mixed-decode-buckets", "8", "--mixed-prefill-buckets", "64")
FLAGS = (*FEW_BUCKETS, "--max-num-seqs", "8", "--max-model-len", "1024", "--num-gpu-blocks-override", "200", "--dtype", "float32")
BODIES = [greedy(prompt_of(length)) for length in (33, 100, 300)]


ASKED_FOR = ("--kv-cache-dtype", "fp8", "--attention-backend", "pallas-triton")


def test_pages_of_fp8_take_a_byte_a_value_and_are_read_again_as_they_were_written(tiny_model: Path, tmp_path: Path) -> None:
    with start_appliance(tmp_path, *FLAGS, *ASKED_FOR, model=str(tiny_model)) as appliance:
        first, again = ask_together(appliance, BODIES), ask_alone(appliance, BODIES)
        log = appliance.log()
        with httpx.Client(base_url=appliance.base_url) as client:
            assert metric(client, "kernel_backend_info") == metric(client, "kernel_backend_info", backend="xla") == 1
    assert texts(again) == texts(first) and len(set(texts(first))) == len(BODIES)
    assert [answer.cached_tokens for answer in again] == [32, 96, 288]
    config = open_source(str(tiny_model)).config
    vectors = 2 * config.num_layers * config.num_kv_heads
    assert json.loads((tmp_path / "model" / "model.json").read_text())["kv_bytes_per_token"] == vectors * (config.head_dim + 4)
    reason = "pallas-triton is not available on this machine; xla runs instead"
    assert f", xla ({reason}" in log
    assert 0 < log.index("backend_fell_back") < log.index("load 1/") and 0 < log.index(f"backend 1/1 {reason}") < log.index("compile 1/")
