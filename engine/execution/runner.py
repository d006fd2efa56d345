"""`plan.Runner` on a JAX device: packs a plan, calls one compiled program, unpacks what it drew."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import jax
import numpy as np

from engine.execution.batch import Limits, SlotArrays, StepShape, pack, step_shape
from engine.execution.kv_pool import DeviceState, admission_rows, needs_admission
from engine.execution.page_moves import MovePrograms, PageMover
from engine.execution.sampler import SlotState
from engine.model.config import ModelConfig
from engine.model.params import Params
from engine.scheduling.plan import (
    NO_MOVES,
    QUERY_BLOCK_TOKENS,
    Admitted,
    Bucket,
    PrefillChunk,
    StepPlan,
    StepResult,
    Ticket,
)
from engine.wire import Sampling, TokenLogprob, TopLogprob

SCORING_BUCKET = Bucket(0, QUERY_BLOCK_TOKENS)
"""Chunks whose prompt is scored run alone, at most this long."""


@dataclass(frozen=True, slots=True)
class Programs:
    """Compiled and callable; a call with anything but the compiled shapes is an error, never a compile."""

    steps: Mapping[StepShape, Callable[[Params, DeviceState, jax.Array], tuple[DeviceState, jax.Array]]]
    admit: Callable[[SlotState, np.ndarray, SlotState], SlotState]
    moves: MovePrograms


@dataclass(frozen=True, slots=True)
class _Dispatched:
    """A ticket: results on their way, and how to read them."""

    plan: StepPlan
    shape: StepShape
    packed: jax.Array
    row_of_decode: np.ndarray
    samplings: tuple[Sampling, ...]
    """Of the plan's rows, in its order: the slots may have new owners when the results are read."""
    scored_tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Owner:
    """Who holds a slot, as far as results are concerned."""

    sampling: Sampling
    prompt: Sequence[int] = field(default=())
    """Kept only where the prompt is to be scored."""


class Cutter(Protocol):
    """Leaves prompts out of the rest of a step, between two layers; `engine.kernels.cpu.library.NativeLibrary` is one."""

    def want_cut(self) -> None: ...
    def settle_cut(self) -> bool: ...


class DeviceRunner:
    """Owns the device's state. Not thread-safe; made by `engine.execution.warmup`."""

    def __init__(
        self, config: ModelConfig, limits: Limits, params: Params, state: DeviceState, programs: Programs, cutter: Cutter | None = None
    ) -> None:
        """Without a `cutter` every step runs to its end."""
        self._config = config
        self._limits = limits
        self._params = params
        self._state = state
        self._programs = programs
        self._cutter = cutter
        self._slots = SlotArrays(limits)
        self._owners: dict[int, _Owner] = {}
        self._mover = PageMover(programs.moves, state.caches, limits.num_pages, limits.swap_pages)

    def dispatch(self, plan: StepPlan) -> Ticket:
        """Start a step; returns before the device is done."""
        if plan.moves != NO_MOVES:
            self._state = self._state._replace(caches=self._mover.run(self._state.caches, plan.moves))
        for admitted in plan.admitted:
            self._admit(admitted)
        scoring = next((chunk for chunk in plan.prefills if chunk.wants_prompt_logprobs), None)
        assert scoring is None or (len(plan.prefills) == 1 and not plan.decodes), "a scored chunk is alone in its step"
        bucket = plan.bucket if scoring is None else SCORING_BUCKET
        shape = step_shape(bucket, self._limits, scores_prompt=scoring is not None)
        following = () if scoring is None else self._following(scoring)
        packed = pack(shape, plan, self._slots, following)
        self._state, results = self._programs.steps[shape](self._params, self._state, packed.buffer)
        results.copy_to_host_async()
        samplings = tuple(self._owners[row.slot].sampling for row in (*plan.decodes, *plan.prefills))
        return _Dispatched(plan, shape, results, packed.row_of_decode, samplings, following)

    def is_done(self, ticket: Ticket) -> bool:
        """Whether `collect` would not wait."""
        assert isinstance(ticket, _Dispatched)
        return ticket.packed.is_ready()  # pyright: ignore[reportAttributeAccessIssue] - the stub lacks it

    @property
    def can_interrupt(self) -> bool:
        """The device can stop between two layers."""
        return self._cutter is not None

    def interrupt(self, ticket: Ticket) -> bool:
        """The device's state is as a step leaves it whose prompts had other tokens: what it wrote of them is written again."""
        if self._cutter is None or self.is_done(ticket):
            return False
        self._cutter.want_cut()
        return True

    def collect(self, ticket: Ticket) -> StepResult:
        """Wait for a step's results. One host-device sync."""
        assert isinstance(ticket, _Dispatched)
        plan = ticket.plan
        packed = np.asarray(ticket.packed)
        self._mover.settle()
        is_cut = self._cutter is not None and self._cutter.settle_cut()
        chunk_rows = ticket.shape.bucket.decode_rows + np.arange(len(plan.prefills))
        rows = packed[np.concatenate([ticket.row_of_decode, chunk_rows])]
        samples = (*(True for _ in plan.decodes), *(chunk.samples and not is_cut for chunk in plan.prefills))
        tokens = tuple(token if drawn else -1 for token, drawn in zip(rows[:, 0].tolist(), samples, strict=True))
        logprobs = tuple(
            read_logprob(row, sampling.logprobs) if drawn and sampling.logprobs >= 0 else None
            for row, drawn, sampling in zip(rows, samples, ticket.samplings, strict=True)
        )
        if is_cut or not ticket.shape.scores_prompt:
            return StepResult(tokens, logprobs, is_cut=is_cut)
        scored = packed[ticket.shape.sample_rows :][: len(ticket.scored_tokens)]
        wanted = ticket.samplings[0].prompt_logprobs
        return StepResult(tokens, logprobs, (tuple(read_logprob(row, wanted) for row in scored),))

    def _admit(self, admitted: Admitted) -> None:
        prompt = admitted.tokens[: admitted.prompt_tokens] if admitted.sampling.prompt_logprobs >= 0 else ()
        self._owners[admitted.slot] = _Owner(admitted.sampling, prompt)
        self._slots.admit(admitted)
        if needs_admission(admitted):
            rows = admission_rows(admitted, self._state.slots, self._config)
            slots = self._programs.admit(self._state.slots, np.int32(admitted.slot), rows)
            self._state = self._state._replace(slots=slots)

    def _following(self, chunk: PrefillChunk) -> tuple[int, ...]:
        """Prompt tokens that follow the chunk's positions; one fewer than its tokens at the prompt's end."""
        first = chunk.start + 1
        return tuple(self._owners[chunk.slot].prompt[first : first + len(chunk.tokens)])


def read_logprob(row: np.ndarray, num_top: int) -> TokenLogprob:
    """One packed row: token, logprob, top logprobs, top ids."""
    floats = row[1:].view(np.float32)
    most = (row.size - 2) // 2
    count = min(num_top, most)
    ids, values = row[2 + most : 2 + most + count].tolist(), floats[1 : 1 + count].tolist()
    return TokenLogprob(float(floats[0]), tuple(map(TopLogprob, ids, values)))
