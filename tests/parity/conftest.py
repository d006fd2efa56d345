"""What the package shares: SmolLM2 in this process, and one served tiny model; each is loaded and compiled once."""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from engine.kernels.cpu.library import NativeUnavailable, native_library
from engine.wire import EngineConfig
from tests.appliance import SMALL_BUCKETS, Appliance, start_appliance
from tests.parity.local_engine import LocalEngine
from tests.tiny_models import write_servable_model

MAX_MODEL_LEN = 2_048


def smollm2_config(**changes: object) -> EngineConfig:
    settings: dict[str, object] = {
        "max_model_len": MAX_MODEL_LEN,
        "num_gpu_blocks_override": 512,
        "max_num_seqs": 20,
        "decode_buckets": (4, 24),
        "prefill_buckets": (64, 512),
        "mixed_decode_buckets": (24,),
        "mixed_prefill_buckets": (64,),
    }
    return EngineConfig(**{**settings, **changes})  # type: ignore[arg-type]


def require_native() -> None:
    """Skip where the native kernels can not be built; in CI they must."""
    library = native_library()
    if isinstance(library, NativeUnavailable):
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI needs the native kernels: {library.reason}")
        pytest.skip(f"no native kernels: {library.reason}")


@pytest.fixture(scope="package")
def native_bf16() -> LocalEngine:
    """The default on a CPU: bfloat16, weights streamed by the native decoder."""
    require_native()
    return LocalEngine(smollm2_config())


# ---- the served tiny model ----------------------------------------------------------------------------------------

PAGE_TOKENS = 16
NUM_PAGES = 640
SERVED_FLAGS = ("--dtype", "float32", "--max-num-seqs", "16", "--max-model-len", "4096", "--num-gpu-blocks-override", str(NUM_PAGES))
GROUP = "parity"
SYSTEM_PROMPT = "You answer questions about our rules, in one short sentence each. " + " ".join(
    f"Rule {n}: {n} things, never fewer, on day {n}." for n in range(105)
)
COMMON_PAGES = 125
"""Full pages of that system prompt in SmolLM2's chat template."""


@pytest.fixture(scope="package")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_servable_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="package")
def baseline(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    """Float32, chunks of up to 64 tokens, prefix cache, overlapped loop, and a common prefix of `GROUP`."""
    folder = tmp_path_factory.mktemp("baseline")
    prefixes = folder / "prefixes.yaml"
    prefixes.write_bytes(msgspec.yaml.encode([{"system": SYSTEM_PROMPT, "trust_group": GROUP}]))
    flags = (*SERVED_FLAGS, *SMALL_BUCKETS, "--common-prefixes", str(prefixes))
    with start_appliance(folder / "data", *flags, model=str(tiny_model)) as running:
        yield running
