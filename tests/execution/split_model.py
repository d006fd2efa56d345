"""Runs one tiny model on 1, 2 and 4 devices made of this machine's CPU, and prints what came out as JSON.

A process of its own, because the number of devices is set before JAX starts: `XLA_FLAGS=--xla_force_host_platform_device_count=4`.

usage: python -m tests.execution.split_model FOLDER
"""

import json
import sys
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from engine.execution.kv_pool import whole_state
from engine.execution.page_moves import PageMover
from engine.execution.warmup import WarmedUp, warm_up
from engine.kernels.attention import AttentionBackend
from engine.kernels.pallas_triton import PallasTritonBackend
from engine.kernels.xla_attention import XlaAttention
from engine.model.checkpoint import load_model
from engine.model.config import ModelConfig
from engine.model.devices import Devices, find_devices, share_of
from engine.scheduling.plan import Bucket, PageMoves
from tests.execution import driver

LIMITS = replace(driver.LIMITS, swap_pages=16)
BUCKETS = (Bucket(16, 0), Bucket(0, 64))
PROMPT_TOKENS = (1, 16, 50)


def run(folder: str, num_devices: int) -> dict[str, Any]:
    """Texts of a split model, and how its arrays and programs are made."""
    devices = find_devices(num_devices)
    config, params = load_model(folder, dtype="float32", devices=devices)
    share = share_of(config, num_devices)
    warmed = warm_up(share, params, LIMITS, XlaAttention(), BUCKETS, "float32", lambda *_: None, devices=devices)
    prompts = [np.random.default_rng(length).integers(0, config.vocab_size, length).tolist() for length in PROMPT_TOKENS]
    texts = driver.Driver(warmed.runner, overlap=True).run([driver.Text(prompt) for prompt in prompts])
    state = warmed.runner._state
    layer = params.layers[0]
    return {
        "texts": texts,
        "histories_agree": all(np.array_equal(shard.data, state.slots.history) for shard in state.slots.history.addressable_shards),
        "shards": {
            "embed": shard_shape(params.embed),
            "head": shard_shape(params.head),
            "qkv": shard_shape(layer.qkv),
            "output": shard_shape(layer.output),
            "gate_up": shard_shape(layer.gate_up),
            "down": shard_shape(layer.down),
            "k": shard_shape(state.caches[0].k),
        },
        "programs": [describe(warmed, shape, state) for shape in warmed.runner._programs.steps],
        "moved_pages_agree": moved_pages_agree(warmed, state),
        "compiles_after_ready": warmed.compiles_after_ready(),
    }


def shard_shape(array: jax.Array) -> tuple[int, ...]:
    return array.addressable_shards[0].data.shape


def describe(warmed: WarmedUp, shape: Any, state: Any) -> dict[str, Any]:
    """Collectives of a compiled step, and whether it writes one device's whole state in place."""
    program: Any = warmed.runner._programs.steps[shape]
    text = program.as_text()
    own_bytes = sum(array.addressable_shards[0].data.nbytes for array in jax.tree.leaves(state))
    return {
        "all_reduce": text.count(" all-reduce("),
        "all_gather": text.count(" all-gather("),
        "donated": program.memory_analysis().alias_size_in_bytes >= own_bytes,
    }


def moved_pages_agree(warmed: WarmedUp, state: Any) -> bool:
    """The first text's page, copied to one that nobody uses and by way of the host to another."""
    mover = PageMover(warmed.runner._programs.moves, state.caches, LIMITS.num_pages, LIMITS.swap_pages)
    before = np.asarray(state.caches[1].v)[0]
    caches = mover.run(state.caches, PageMoves(swapped_out=((0, 0),), copied=((0, 398),), swapped_in=((0, 399),)))
    after = np.asarray(caches[1].v)
    return bool(before.any()) and all(np.array_equal(after[page], before) for page in (398, 399))


def head_axes(config: ModelConfig, backend: AttentionBackend, devices: Devices) -> list[str]:
    """Along what the arrays of an int8 cache are cut."""
    share = share_of(config, devices.count)
    return [str(tuple(array.sharding.spec)) for array in whole_state(devices, share, LIMITS, backend, "int8").caches[0]]


def main() -> None:
    folder = sys.argv[1]
    config = load_model(folder, dtype="float32")[0]
    devices = find_devices(2)
    axes = {backend.name: head_axes(config, backend, devices) for backend in (XlaAttention(), PallasTritonBackend((9, 0)))}
    print(json.dumps({"head_axes": axes} | {str(count): run(folder, count) for count in (1, 2, 4)}))


if __name__ == "__main__":
    main()
