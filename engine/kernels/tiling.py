"""How the GPU kernels cut their work: pure functions of shapes, so a table can hold them and a test can compare.

Sizes come from registers and spills of deviceless compiles (docs/gpu.md), not yet from a clock.
"""

from dataclasses import dataclass

from engine.kernels.attention import AttentionShape

MIN_DOT_ROWS = 16
"""The tensor cores' smallest tile, and Triton's."""

TARGET_PROGRAMS = 528
"""Programs that fill a card: four for each of an H200's 132 cores. Splits are cut to reach about as many."""

MAX_SPLITS = 32

PREFILL_ROWS = 64

MAX_DECODE_TILE = 64 * 256
"""Query rows x head dim of a decode's tile, which lies in registers: twice as much spills on Ampere."""


def next_power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeTiling:
    """One program: `rows` query rows (tokens x heads of a KV head's group) against `block_tokens` at a time of a split."""

    rows: int
    padded_head_dim: int
    block_tokens: int
    splits: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillTiling:
    """One program: `query_tokens` tokens of one chunk x the heads of one group (padded to `rows`)."""

    query_tokens: int
    rows: int
    padded_head_dim: int
    block_tokens: int
    num_warps: int
    num_stages: int


def max_query_tokens(shape: AttentionShape) -> int:
    """Tokens of a row that one decode tile holds: at least 4 of a group of 16 at a head dim of 256."""
    return MAX_DECODE_TILE // (shape.num_heads // shape.num_kv_heads * next_power_of_two(shape.head_dim))


def decode_tiling(shape: AttentionShape, table_pages: int, kv_bytes: int, query_tokens: int = 1) -> DecodeTiling:
    """`kv_bytes` of one element of the cache: 8-bit blocks are widened in registers, so they are half as long.

    The rows of a tile must fit the registers: at most `max_query_tokens` tokens.
    Splits: enough for one sequence to fill the card alone, as far as its longest context allows four blocks each.
    How many of them a sequence uses is decided at run time; unused ones end at once.
    """
    rows = max(MIN_DOT_ROWS, next_power_of_two(query_tokens * shape.num_heads // shape.num_kv_heads))
    padded = next_power_of_two(shape.head_dim)
    block = 32 if padded > 128 or rows > 64 or (kv_bytes == 1 and padded > 64) else 64
    wanted = next_power_of_two(-(-TARGET_PROGRAMS // shape.num_kv_heads))
    longest = max(1, table_pages * shape.page_size // (4 * block))
    return DecodeTiling(
        rows=rows,
        padded_head_dim=padded,
        block_tokens=block,
        splits=min(MAX_SPLITS, wanted, next_power_of_two(longest)),
        num_warps=4 if rows * padded <= 64 * 128 else 8,
        num_stages=3 if padded <= 128 else 2,
    )


def prefill_tiling(shape: AttentionShape, kv_bytes: int, capability: tuple[int, int]) -> PrefillTiling:
    """64 rows, whole groups: 64 tokens of 1 head, 16 of 4, 4 of 16. 128 rows spill on Ampere for some shapes.

    With three stages ptxas serialises Hopper's wgmma for most shapes; with two, Ampere spills.
    """
    padded = next_power_of_two(shape.head_dim)
    group = shape.num_heads // shape.num_kv_heads
    return PrefillTiling(
        query_tokens=PREFILL_ROWS // next_power_of_two(group),
        rows=PREFILL_ROWS,
        padded_head_dim=padded,
        block_tokens=32 if padded > 128 or kv_bytes == 1 else 64,
        num_warps=4 if padded <= 128 else 8,
        num_stages=2 if padded > 128 or kv_bytes == 1 or capability[0] == 9 else 3,
    )
