"""Pages copied within the pool, to the host and back: every array of every layer, and nothing beside them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from engine.execution.page_moves import MOVE_PAGES, Caches, PageMover, compile_moves
from engine.kernels.cpu.attention import pack_cache
from engine.kernels.xla_attention import PagedKv
from engine.scheduling.plan import PageMoves

NUM_PAGES = 40
HOST_PAGES = 24


def float_pages(draw: np.random.Generator) -> PagedKv:
    return PagedKv(*(jnp.asarray(draw.standard_normal((NUM_PAGES, 16, 2, 32), np.float32)) for _ in range(2)))


def int8_pages(draw: np.random.Generator) -> PagedKv:
    values = (jnp.asarray(draw.integers(-128, 128, (NUM_PAGES, 16, 2, 32)), jnp.int8) for _ in range(2))
    return PagedKv(*values, *(jnp.asarray(draw.random((NUM_PAGES, 16, 2), np.float32)) for _ in range(2)))


KINDS = {
    "xla float32": float_pages,
    "xla int8": int8_pages,
    "native int8": lambda draw: pack_cache(int8_pages(draw)),
    "native bfloat16": lambda draw: pack_cache(jax.tree.map(lambda pages: pages.astype(jnp.bfloat16), float_pages(draw))),
}


@pytest.fixture(scope="module", params=KINDS)
def caches(request: pytest.FixtureRequest) -> Caches:
    draw = np.random.default_rng(1)
    return tuple(KINDS[request.param](draw) for _ in range(2))


@pytest.fixture(scope="module")
def programs(caches: Caches):
    return compile_moves(caches, with_swap=True)


def moved(programs, caches: Caches, *moves: PageMoves) -> Caches:
    """What the caches hold after these moves, one after the other; the given ones stay."""
    mover = PageMover(programs, caches, NUM_PAGES, HOST_PAGES)
    current = jax.tree.map(jnp.copy, caches)
    for move in moves:
        current = mover.run(current, move)
    return current


def assert_pages(caches: Caches, before: Caches, sources: dict[int, int]) -> None:
    """Page p holds what page `sources[p]` held before, and every other page what it held."""
    order = [sources.get(page, page) for page in range(NUM_PAGES)]
    for array, old in zip(jax.tree.leaves(caches), jax.tree.leaves(before), strict=True):
        np.testing.assert_array_equal(np.asarray(array), np.asarray(old)[order])


@pytest.mark.parametrize("count", [1, MOVE_PAGES, MOVE_PAGES + 3])
def test_copies_reach_their_targets_and_nothing_else(programs, caches: Caches, count: int) -> None:
    pairs = tuple((page, NUM_PAGES - 1 - page) for page in range(count))
    assert_pages(moved(programs, caches, PageMoves(copied=pairs)), caches, {target: source for source, target in pairs})


@pytest.mark.parametrize("count", [1, MOVE_PAGES, MOVE_PAGES + 5])
def test_pages_come_back_from_the_host_wherever_they_go(programs, caches: Caches, count: int) -> None:
    out = PageMoves(swapped_out=tuple((page, HOST_PAGES - 1 - page) for page in range(count)))
    over_them = PageMoves(copied=tuple((NUM_PAGES - 1, page) for page in range(count)))
    back = PageMoves(swapped_in=tuple((HOST_PAGES - 1 - page, page + 1) for page in range(count)))
    expected = {**dict.fromkeys(range(count), NUM_PAGES - 1), **{page + 1: page for page in range(count)}}
    assert_pages(moved(programs, caches, out, over_them, back), caches, expected)


def test_what_leaves_is_read_before_anything_is_written_and_what_returns_is_written_last(programs, caches: Caches) -> None:
    """A page given up is a copy's target in the same step, and a copy's source is overwritten by what returns."""
    there = PageMoves(swapped_out=((3, 0),))
    together = PageMoves(swapped_out=((5, 1),), copied=((7, 5),), swapped_in=((0, 7), (1, 9)))
    assert_pages(moved(programs, caches, there, together), caches, {5: 7, 7: 3, 9: 5})


def test_a_host_page_that_is_given_to_another_holds_what_came_last(programs, caches: Caches) -> None:
    twice = (PageMoves(swapped_out=((3, 0),)), PageMoves(swapped_out=((4, 0),)), PageMoves(swapped_in=((0, 10),)))
    assert_pages(moved(programs, caches, *twice), caches, {10: 4})
