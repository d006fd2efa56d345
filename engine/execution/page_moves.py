"""Whole pages copied before a step's rows: within the pool (copy-on-write), and to host memory and back (swap).

A page is an index of the first axis of every array of every layer's cache, whatever else the backend packs into it, so one
program moves a page of all layers. The programs take and return the device's state like a step does: XLA runs them in the order
of dispatch, so what is read was written by all steps before, and what is written is there for the step behind.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from engine.kernels.attention import LayerCache
from engine.model.devices import ONE_DEVICE, Devices
from engine.scheduling.plan import PageMoves

MOVE_PAGES = 16
"""Pages that one call moves; what it has more is padding, which is dropped."""

type Caches = tuple[LayerCache, ...]


def copy_pages(caches: Caches, sources: jax.Array, targets: jax.Array) -> Caches:
    """Pages `sources` i32 [N] to `targets` i32 [N], all read before any is written; a target beyond the pool writes nothing."""
    return jax.tree.map(lambda pages: pages.at[targets].set(pages[sources], mode="drop"), caches)


def read_pages(caches: Caches, sources: jax.Array) -> Caches:
    """Pages `sources` i32 [N] of every array."""
    return jax.tree.map(lambda pages: pages[sources], caches)


def write_pages(caches: Caches, targets: jax.Array, rows: Caches) -> Caches:
    """What `read_pages` gave, at `targets` i32 [N]; a target beyond the pool writes nothing."""
    return jax.tree.map(lambda pages, new: pages.at[targets].set(new, mode="drop"), caches, rows)


@dataclass(frozen=True, slots=True)
class MovePrograms:
    """Compiled. Without swap space the last two are not there."""

    copy: Callable[[Caches, np.ndarray, np.ndarray], Caches]
    read: Callable[[Caches, np.ndarray], Caches] | None = None
    write: Callable[[Caches, np.ndarray, Caches], Caches] | None = None


def compile_moves(caches: Caches, *, with_swap: bool, devices: Devices = ONE_DEVICE) -> MovePrograms:
    """One copy program, and the two of swap where there is space for it."""
    indices = jax.ShapeDtypeStruct((MOVE_PAGES,), np.int32)
    copy = devices.jit(copy_pages, (caches, indices, indices), caches, donate_argnums=(0,)).lower(caches, indices, indices).compile()
    if not with_swap:
        return MovePrograms(copy)
    rows = jax.tree.map(lambda pages: jax.ShapeDtypeStruct((MOVE_PAGES, *pages.shape[1:]), pages.dtype), caches)
    read = devices.jit(read_pages, (caches, indices), caches).lower(caches, indices).compile()
    write = devices.jit(write_pages, (caches, indices, caches), caches, donate_argnums=(0,)).lower(caches, indices, rows).compile()
    return MovePrograms(copy, read, write)


class PageMover:
    """Does a plan's moves, and owns the host's pages. Host memory is touched when it is first written, not before."""

    def __init__(self, programs: MovePrograms, caches: Caches, num_pages: int, host_pages: int) -> None:
        self._programs = programs
        self._beyond = num_pages
        self._host: Any = jax.tree.map(lambda pages: np.empty((host_pages, *pages.shape[1:]), pages.dtype), caches)
        self._arriving: deque[tuple[list[int], Caches]] = deque()
        """Host pages, and the device's arrays on their way to them."""

    def run(self, caches: Caches, moves: PageMoves) -> Caches:
        """All moves of a plan, in their order: out, within, back."""
        for start in range(0, len(moves.swapped_out), MOVE_PAGES):
            part = moves.swapped_out[start : start + MOVE_PAGES]
            self._read(caches, [page for page, _ in part], [host_page for _, host_page in part])
        for start in range(0, len(moves.copied), MOVE_PAGES):
            part = moves.copied[start : start + MOVE_PAGES]
            sources, targets = self._indices([source for source, _ in part], 0), self._indices([target for _, target in part], self._beyond)
            caches = self._programs.copy(caches, sources, targets)
        if moves.swapped_in:
            self.settle()
        for start in range(0, len(moves.swapped_in), MOVE_PAGES):
            part = moves.swapped_in[start : start + MOVE_PAGES]
            caches = self._write(caches, [host_page for host_page, _ in part], [page for _, page in part])
        return caches

    def settle(self) -> None:
        """Put what left the device into its host pages; waits for whatever is still on its way."""
        while self._arriving:
            host_pages, rows = self._arriving.popleft()
            for kept, arrived in zip(jax.tree.leaves(self._host), jax.tree.leaves(rows), strict=True):
                kept[host_pages] = np.asarray(arrived)[: len(host_pages)]

    def _read(self, caches: Caches, pages: list[int], host_pages: list[int]) -> None:
        assert self._programs.read is not None, "there is no swap space"
        rows = self._programs.read(caches, self._indices(pages, 0))
        for array in jax.tree.leaves(rows):
            array.copy_to_host_async()
        self._arriving.append((host_pages, rows))

    def _write(self, caches: Caches, host_pages: list[int], pages: list[int]) -> Caches:
        assert self._programs.write is not None, "there is no swap space"
        indices = self._indices(host_pages, host_pages[0])
        return self._programs.write(caches, self._indices(pages, self._beyond), jax.tree.map(lambda kept: kept[indices], self._host))

    def _indices(self, pages: list[int], padding: int) -> np.ndarray:
        return np.array([*pages, *[padding] * (MOVE_PAGES - len(pages))], np.int32)
