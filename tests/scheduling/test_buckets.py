"""Shapes: the default lists, what the limits cut, and the choice for a step."""

import pytest

from engine.errors import ConfigError
from engine.scheduling.buckets import MAX_PROGRAMS, Buckets, buckets_of, round_to_block
from engine.scheduling.plan import Bucket
from engine.wire import EngineConfig

DEFAULT = buckets_of(EngineConfig())


def test_the_defaults_are_the_designs_lists_cut_to_32_rows() -> None:
    expected = Buckets(
        decode_rows=(2, 4, 8, 16, 32),
        prefill_tokens=(16, 32, 48, 64, 80, 96, 128, 192, 256, 512),
        mixed_decode_rows=(8, 16, 32),
        mixed_prefill_tokens=(16, 32, 64, 128, 256),
    )
    assert expected == DEFAULT
    assert len(DEFAULT.all()) == MAX_PROGRAMS


@pytest.mark.parametrize(
    ("max_num_seqs", "decode", "mixed"),
    [(1, (2,), (2,)), (3, (2, 4), (4,)), (8, (2, 4, 8), (8,)), (12, (2, 4, 8, 16), (8, 16)), (64, (2, 4, 8, 16, 32, 64), (8, 64))],
)
def test_decode_buckets_end_at_the_first_that_holds_every_running_sequence(
    max_num_seqs: int, decode: tuple[int, ...], mixed: tuple[int, ...]
) -> None:
    buckets = buckets_of(EngineConfig(max_num_seqs=max_num_seqs))
    assert (buckets.decode_rows, buckets.mixed_decode_rows) == (decode, mixed)


def test_no_decode_bucket_has_one_row() -> None:
    assert DEFAULT.choose(1, 0) == Bucket(2, 0)


def test_more_rows_or_tokens_than_the_lists_know_are_reached_by_doubling() -> None:
    buckets = buckets_of(EngineConfig(max_num_seqs=200, max_num_batched_tokens=2048))
    assert buckets.decode_rows[-2:] == (128, 256)
    assert buckets.prefill_tokens[-3:] == (512, 1024, 2048)


@pytest.mark.parametrize("max_num_seqs", [1, 2, 5, 8, 31, 32, 33, 64])
@pytest.mark.parametrize("max_num_batched_tokens", [16, 100, 512, 2048])
def test_every_step_within_the_limits_has_a_bucket_and_the_programs_stay_in_budget(max_num_seqs: int, max_num_batched_tokens: int) -> None:
    buckets = buckets_of(EngineConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens))
    assert len(set(buckets.all())) == len(buckets.all()) <= MAX_PROGRAMS
    for rows in range(max_num_seqs + 1):
        for tokens in range(0 if rows else 16, buckets.prefill_capacity(rows) + 1, 16):
            bucket = buckets.choose(rows, tokens)
            assert bucket in buckets.all()
            assert bucket.decode_rows >= rows and bucket.prefill_tokens >= tokens


def test_the_smallest_bucket_that_holds_a_step_is_chosen() -> None:
    assert DEFAULT.choose(9, 0) == Bucket(16, 0)
    assert DEFAULT.choose(0, 80) == Bucket(0, 80)
    assert DEFAULT.choose(0, 112) == Bucket(0, 128)
    assert DEFAULT.choose(8, 48) == Bucket(8, 64)
    assert DEFAULT.choose(9, 16) == Bucket(16, 16)
    assert DEFAULT.choose(17, 16) == Bucket(32, 16)


def test_chunks_take_whole_query_blocks() -> None:
    assert [round_to_block(tokens) for tokens in (1, 15, 16, 17)] == [16, 16, 16, 32]


def test_configured_lists_replace_the_defaults() -> None:
    config = EngineConfig(
        max_num_seqs=8, decode_buckets=(8, 2), prefill_buckets=(64,), mixed_decode_buckets=(8,), mixed_prefill_buckets=(64,)
    )
    assert list(map(str, buckets_of(config).all())) == ["d2", "d8", "p64", "d8p64"]


@pytest.mark.parametrize("key", ["decode_buckets", "mixed_decode_buckets"])
def test_a_list_that_can_not_hold_every_running_sequence_is_refused_with_the_numbers(key: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key} ends at 16 rows, max_num_seqs is 32"):
        buckets_of(EngineConfig(**{key: (8, 16)}))


def test_more_programs_than_the_budget_are_refused() -> None:
    with pytest.raises(ConfigError, match="make 39 programs, the budget is 30"):
        buckets_of(EngineConfig(mixed_decode_buckets=(2, 4, 8, 32), mixed_prefill_buckets=(16, 32, 64, 80, 96, 128)))
