"""The compiled shapes: which there are, and which one a step runs in."""

from bisect import bisect_left
from dataclasses import dataclass

from engine.errors import ConfigError
from engine.scheduling.plan import QUERY_BLOCK_TOKENS, Bucket
from engine.wire import EngineConfig

DECODE_ROWS = (2, 4, 8, 16, 32, 64)
"""No bucket of one row: on a CPU one row takes XLA's slow matrix-vector path (design, section 5)."""
PREFILL_TOKENS = (16, 32, 48, 64, 80, 96, 128, 192, 256, 512)
MIXED_DECODE_ROWS = (8, 16)
"""And as many as there are slots."""
MIXED_PREFILL_TOKENS = (16, 32, 64, 128, 256)
MAX_PROGRAMS = 30
"""Each bucket is one program, at 1 to 2.6 s of compiling each, cold, on two cores."""


def round_to_block(tokens: int) -> int:
    """Rows that a chunk of so many tokens takes."""
    return -(-tokens // QUERY_BLOCK_TOKENS) * QUERY_BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class Buckets:
    """Sorted sizes; mixed buckets are every pair of the last two lists."""

    decode_rows: tuple[int, ...]
    prefill_tokens: tuple[int, ...]
    mixed_decode_rows: tuple[int, ...]
    mixed_prefill_tokens: tuple[int, ...]

    def all(self) -> tuple[Bucket, ...]:
        """Every program, cheapest first within its kind."""
        return (
            *(Bucket(rows, 0) for rows in self.decode_rows),
            *(Bucket(0, tokens) for tokens in self.prefill_tokens),
            *(Bucket(rows, tokens) for rows in self.mixed_decode_rows for tokens in self.mixed_prefill_tokens),
        )

    def prefill_capacity(self, decode_rows: int) -> int:
        """Most prefill rows that a step with so many decode rows can hold."""
        return self.mixed_prefill_tokens[-1] if decode_rows else self.prefill_tokens[-1]

    def prefill_below(self, decode_rows: int, prefill_tokens: int) -> int:
        """The largest compiled number of prefill rows that so many tokens fill; 0 when they fill none."""
        sizes = self.mixed_prefill_tokens if decode_rows else self.prefill_tokens
        return max((size for size in sizes if size <= prefill_tokens), default=0)

    def choose(self, decode_rows: int, prefill_tokens: int) -> Bucket:
        """The smallest bucket that holds both; `prefill_tokens` counts chunks rounded up to query blocks."""
        if not prefill_tokens:
            return Bucket(_smallest(self.decode_rows, decode_rows), 0)
        if not decode_rows:
            return Bucket(0, _smallest(self.prefill_tokens, prefill_tokens))
        return Bucket(_smallest(self.mixed_decode_rows, decode_rows), _smallest(self.mixed_prefill_tokens, prefill_tokens))


def _smallest(sizes: tuple[int, ...], needed: int) -> int:
    return sizes[bisect_left(sizes, needed)]


def buckets_of(config: EngineConfig) -> Buckets:
    """The default lists, cut to what `max_num_seqs` and `max_num_batched_tokens` can use, or the configured ones.

    Raises:
        ConfigError: a list can not hold what the limits allow, or there are more than `MAX_PROGRAMS` programs.
    """
    decode = _sorted(config.decode_buckets) or _up_to(DECODE_ROWS, config.max_num_seqs)
    prefill = _sorted(config.prefill_buckets) or _up_to(PREFILL_TOKENS, config.max_num_batched_tokens)
    mixed_prefill = _sorted(config.mixed_prefill_buckets) or tuple(size for size in MIXED_PREFILL_TOKENS if size <= prefill[-1])
    mixed_decode = _sorted(config.mixed_decode_buckets) or _mixed_rows(decode, len(prefill), len(mixed_prefill))
    for key, sizes in (("decode_buckets", decode), ("mixed_decode_buckets", mixed_decode)):
        if sizes[-1] < config.max_num_seqs:
            raise ConfigError(
                f"{key} ends at {sizes[-1]} rows, max_num_seqs is {config.max_num_seqs}: every running sequence decodes in"
                f" every step, so add a bucket of at least {config.max_num_seqs} rows or lower max_num_seqs"
            )
    for key, sizes in (("prefill_buckets", prefill), ("mixed_prefill_buckets", mixed_prefill)):
        if not sizes or any(size % QUERY_BLOCK_TOKENS for size in sizes):
            raise ConfigError(f"{key} is {sizes}: give multiples of {QUERY_BLOCK_TOKENS} tokens")
    buckets = Buckets(decode, prefill, mixed_decode, mixed_prefill)
    if len(buckets.all()) > MAX_PROGRAMS:
        raise ConfigError(
            f"the bucket lists make {len(buckets.all())} programs, the budget is {MAX_PROGRAMS}: shorten"
            " decode_buckets, prefill_buckets, mixed_decode_buckets or mixed_prefill_buckets"
        )
    return buckets


def _mixed_rows(decode: tuple[int, ...], num_prefill: int, num_mixed_prefill: int) -> tuple[int, ...]:
    """Of `MIXED_DECODE_ROWS` the first ones, as many as the budget has room for."""
    rows = [size for size in MIXED_DECODE_ROWS if size < decode[-1]]
    while len(rows) > 1 and len(decode) + num_prefill + (len(rows) + 1) * num_mixed_prefill > MAX_PROGRAMS:
        rows.pop()
    return (*rows, decode[-1])


def _sorted(sizes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(dict.fromkeys(sizes)))


def _up_to(sizes: tuple[int, ...], limit: int) -> tuple[int, ...]:
    """The default sizes up to the first one that holds `limit`; behind the list's end they double."""
    chosen = [size for size in sizes if size < limit]
    last = sizes[len(chosen)] if len(chosen) < len(sizes) else sizes[-1]
    while last < limit:
        chosen.extend([last] if last not in chosen else [])
        last *= 2
    return (*chosen, last)
