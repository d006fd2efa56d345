"""Runs the Mosaic GPU kernels in JAX's GPU interpreter and prints what came out, one JSON object a line.

A process of its own, because the interpreter can wait for ever (for a barrier that nobody reaches, and on a busy machine
for a thread of its own pool), and a kernel that fails leaves it unusable.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import mosaic_gpu as plgpu

from engine.kernels import reference
from engine.kernels.attention import AttentionShape
from engine.kernels.mosaic_blocks import Ring
from engine.kernels.mosaic_decode import MosaicDecodeTiling, mosaic_decode
from engine.kernels.mosaic_prefill import mosaic_prefill
from tests.kernels_gpu.paged import Chunk, layout_of, plain_pages, random_cache, random_tables, relative_error

PLAIN = AttentionShape(num_heads=8, num_kv_heads=2, head_dim=64, page_size=16, scale=0.125)
PAGES_EACH, NUM_PAGES = 20, 24
RING = Ring(block_tokens=64, stages=2, narrow_stages=2)


def decode_error(
    shape: AttentionShape, lengths: list[int], tiling: MosaicDecodeTiling, kv_dtype: str, queries: int = 1, **how: Any
) -> float:
    rng = np.random.default_rng(0)
    pages_each = PAGES_EACH * 16 // shape.page_size
    cache, tables = random_cache(shape, NUM_PAGES, kv_dtype, rng), random_tables(len(lengths), pages_each, NUM_PAGES, rng)
    q = jnp.asarray(rng.normal(size=(len(lengths), queries, shape.num_heads, shape.head_dim)), jnp.bfloat16)
    counts = np.asarray(lengths, np.int32)
    got = mosaic_decode(shape, cache, q, jnp.asarray(tables), jnp.asarray(counts), tiling=tiling, **how)
    return relative_error(got, reference.decode(shape, *plain_pages(cache), np.asarray(q, np.float32), tables, counts))


def prefill_error(shape: AttentionShape, chunks: list[Chunk], num_rows: int, kv_dtype: str, **how: Any) -> float:
    rng = np.random.default_rng(0)
    cache = random_cache(shape, NUM_PAGES, kv_dtype, rng)
    layout = layout_of(chunks, random_tables(len(chunks), PAGES_EACH, NUM_PAGES, rng), num_rows)
    q = jnp.asarray(rng.normal(size=(num_rows, shape.num_heads, shape.head_dim)), jnp.bfloat16)
    got = mosaic_prefill(shape, cache, q, layout, ring=RING, **how)
    plain_layout = layout._replace(**{name: np.asarray(value) for name, value in layout._asdict().items()})
    return relative_error(got, reference.prefill(shape, *plain_pages(cache), np.asarray(q, np.float32), plain_layout))


def cases() -> Iterator[tuple[str, float]]:
    """Name and error of each. Blocks beyond the stages are the interesting ones: there the ring comes round."""
    numbers = {"interpret": plgpu.InterpretGPUParams()}
    races = {"interpret": plgpu.InterpretGPUParams(detect_races=True), "plain_dot": True}
    tiling = MosaicDecodeTiling(rows=8, splits=1, ring=RING)
    one_head = replace(PLAIN, num_heads=4, num_kv_heads=1)
    wide = replace(one_head, page_size=64, head_dim=128)
    capped = replace(one_head, sliding_window=70, soft_cap=20.0)
    yield "decode in two splits", decode_error(one_head, [320, 17], replace(tiling, splits=2), "bfloat16", **numbers)
    yield (
        "prefill, one head, window",
        prefill_error(replace(one_head, num_heads=1, sliding_window=50), [Chunk(90, 140)], 144, "bfloat16", **numbers),
    )
    for kv in ("bfloat16", "int8"):
        yield f"{kv} decode", decode_error(PLAIN, [300, 0, 65], tiling, kv, **numbers)
        yield f"{kv} decode, page 64, head dim 128", decode_error(wide, [200], tiling, kv, **numbers)
        yield f"{kv} decode of 4 tokens, window, soft cap", decode_error(capped, [200], replace(tiling, rows=16), kv, 4, **numbers)
        yield f"{kv} decode, races, blocks within the stages", decode_error(one_head, [128], tiling, kv, **races)
        yield f"{kv} decode, races, blocks beyond the stages", decode_error(one_head, [320], tiling, kv, **races)
        yield f"{kv} prefill", prefill_error(PLAIN, [Chunk(70, 40), Chunk(0, 0), Chunk(130, 5)], 80, kv, **numbers)
        yield f"{kv} prefill, races", prefill_error(one_head, [Chunk(200, 33)], 48, kv, **races)


if __name__ == "__main__":
    for name, error in cases():
        json.dump({"name": name, "error": error}, sys.stdout)
        print(flush=True)
