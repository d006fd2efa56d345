"""A runner without a device: it models the KV cache exactly and draws each next token from a hash of its context.

Every cache slot remembers the chain of tokens it was computed from, so a row that reads a page of somebody else, a
page that was never written, or one written by a late row, is found at once and not as strange text.
"""

from collections import deque
from dataclasses import dataclass

from engine.scheduling.buckets import round_to_block
from engine.scheduling.plan import Admitted, DecodeRow, PageMoves, PrefillChunk, StepPlan, StepResult
from engine.wire import Sampling, TokenLogprob

MAX_IN_FLIGHT = 2
_UNWRITTEN = 0
_HALF_WRITTEN = -1
"""By a step that was cut short."""
_MIX = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1


class CacheMixup(AssertionError):
    """A plan reads or writes what it must not: a bug of the scheduler."""


@dataclass(frozen=True, slots=True)
class SimulatedTicket:
    """A dispatched step and its results, which nobody sees before `collect`."""

    plan: StepPlan
    result: StepResult

    @property
    def cut_result(self) -> StepResult:
        """Of its decodes alone."""
        decodes, prefills = len(self.plan.decodes), len(self.plan.prefills)
        tokens, logprobs = self.result.tokens[:decodes], self.result.logprobs[:decodes]
        return StepResult((*tokens, *(-1,) * prefills), (*logprobs, *(None,) * prefills), is_cut=True)


@dataclass(slots=True)
class _Slot:
    """The device's state of one running sequence."""

    sequence_id: int
    tokens: list[int]
    chain: list[int]
    """chain[i] stands for tokens 0..i: what the cache must hold at position i."""
    prompt_tokens: int
    sampling: Sampling
    table: list[int]


class SimulatedRunner:
    """Implements `engine.scheduling.plan.Runner`."""

    def __init__(self, *, num_pages: int, page_size: int, num_slots: int, vocab_size: int) -> None:
        self._page_size = page_size
        self._num_pages = num_pages
        self._vocab_size = vocab_size
        self._cache = [_UNWRITTEN] * (num_pages * page_size)
        self._slots: list[_Slot | None] = [None] * num_slots
        self._in_flight: deque[SimulatedTicket] = deque()
        self._cut: SimulatedTicket | None = None
        self._host: dict[int, list[int]] = {}

    def dispatch(self, plan: StepPlan) -> SimulatedTicket:
        """Do the step in dispatch order, as a device does.

        Raises:
            CacheMixup: the plan contradicts the device's state.
        """
        _require(len(self._in_flight) < MAX_IN_FLIGHT, "too many steps in flight")
        _check_bucket(plan)
        self._move(plan.moves)
        for admitted in plan.admitted:
            self._admit(admitted)
        # Writes of a step come before its reads on the device, for all rows together.
        for row in plan.decodes:
            self._write(row, row.position, 1)
        for chunk in plan.prefills:
            start, slot = chunk.start, self._slot(chunk)
            _require(tuple(slot.tokens[start : start + len(chunk.tokens)]) == chunk.tokens, f"{chunk} has other tokens than its slot")
            self._write(chunk, start, len(chunk.tokens))
        drawn = [self._draw(row, row.position) for row in plan.decodes]
        for chunk in plan.prefills:
            end = chunk.start + len(chunk.tokens)
            self._check_context(chunk, end - 1)
            drawn.append(self._draw(chunk, end - 1) if chunk.samples else (-1, None))
        result = StepResult(
            tuple(token for token, _ in drawn),
            tuple(logprob for _, logprob in drawn),
            tuple(self._prompt_logprobs(chunk) for chunk in plan.prefills),
        )
        ticket = SimulatedTicket(plan, result)
        self._in_flight.append(ticket)
        return ticket

    def is_done(self, ticket: SimulatedTicket) -> bool:
        """Simulated steps take no time."""
        del ticket
        return True

    def interrupt(self, ticket: SimulatedTicket) -> bool:
        """Its prompts' tokens are taken back, and what it wrote of them is spoilt."""
        _require(len(self._in_flight) == 1 and self._in_flight[0] is ticket, "only a step with nothing behind it is cut short")
        self._cut = ticket
        for chunk in ticket.plan.prefills:
            self._spoil(chunk)
        return True

    def collect(self, ticket: SimulatedTicket) -> StepResult:
        """The step's tokens; steps are collected in the order they were dispatched."""
        _require(bool(self._in_flight) and self._in_flight[0] is ticket, "steps are collected in the order they were dispatched")
        cut, self._cut = self._cut, None
        self._in_flight.popleft()
        return ticket.cut_result if cut is ticket else ticket.result

    def _spoil(self, chunk: PrefillChunk) -> None:
        slot = self._slot(chunk)
        if chunk.samples:
            slot.tokens.pop()
            slot.chain.pop()
        for position in range(chunk.start, chunk.start + len(chunk.tokens)):
            self._cache[self._index(slot, position)] = _HALF_WRITTEN

    def _move(self, moves: PageMoves) -> None:
        """Copies of whole pages; what a page never held is copied, too."""
        size = self._page_size
        for page, host_page in moves.swapped_out:
            self._host[host_page] = self._cache[page * size : (page + 1) * size]
        sources, targets = ({pair[side] for pair in moves.copied} for side in (0, 1))
        _require(len(targets) == len(moves.copied) and not sources & targets, f"copies get in each other's way: {moves.copied}")
        for source, target in moves.copied:
            self._cache[target * size : (target + 1) * size] = self._cache[source * size : (source + 1) * size]
        for host_page, page in moves.swapped_in:
            _require(host_page in self._host, f"host page {host_page} was never written")
            self._cache[page * size : (page + 1) * size] = self._host[host_page]

    def _admit(self, admitted: Admitted) -> None:
        tokens = list(admitted.tokens)
        chain: list[int] = []
        for token in tokens:
            chain.append(_next_chain(chain, token))
        self._slots[admitted.slot] = _Slot(admitted.sequence_id, tokens, chain, admitted.prompt_tokens, admitted.sampling, [])

    def _slot(self, row: DecodeRow | PrefillChunk) -> _Slot:
        slot = self._slots[row.slot]
        if slot is None or slot.sequence_id != row.sequence_id:
            raise CacheMixup(f"slot {row.slot} is not sequence {row.sequence_id}'s")
        return slot

    def _write(self, row: DecodeRow | PrefillChunk, start: int, tokens: int) -> None:
        slot = self._slot(row)
        _require(all(0 <= page < self._num_pages for page in row.new_pages), f"{row} has a page that does not exist")
        slot.table.extend(row.new_pages)
        _require(start + tokens <= len(slot.tokens), f"{row} goes beyond the {len(slot.tokens)} known tokens")
        for position in range(start, start + tokens):
            self._cache[self._index(slot, position)] = slot.chain[position]

    def _index(self, slot: _Slot, position: int) -> int:
        page_index, offset = divmod(position, self._page_size)
        _require(page_index < len(slot.table), f"position {position} of sequence {slot.sequence_id} has no page")
        return slot.table[page_index] * self._page_size + offset

    def _check_context(self, row: DecodeRow | PrefillChunk, position: int) -> None:
        """Everything the row reads was computed from exactly its own tokens."""
        slot = self._slot(row)
        for page_index in range(position // self._page_size + 1):
            first = page_index * self._page_size
            last = min(first + self._page_size, position + 1)
            index = self._index(slot, first)
            _require(
                self._cache[index : index + last - first] == slot.chain[first:last],
                f"sequence {slot.sequence_id} reads page {slot.table[page_index]} as its positions {first} to {last - 1}: it holds others",
            )

    def _draw(self, row: DecodeRow | PrefillChunk, position: int) -> tuple[int, TokenLogprob | None]:
        """The token after `position`: a function of the context and the seed alone."""
        self._check_context(row, position)
        slot = self._slot(row)
        _require(position + 1 == len(slot.tokens), f"sequence {slot.sequence_id} draws a token it has already")
        mixed = _mix(slot.chain[position] ^ slot.sampling.seed)
        token = mixed % self._vocab_size
        slot.tokens.append(token)
        slot.chain.append(_next_chain(slot.chain, token))
        return token, _logprob_of(token, mixed) if slot.sampling.logprobs >= 0 else None

    def _prompt_logprobs(self, chunk: PrefillChunk) -> tuple[TokenLogprob, ...]:
        if not chunk.wants_prompt_logprobs:
            return ()
        slot = self._slot(chunk)
        following = range(chunk.start + 1, min(chunk.start + len(chunk.tokens), slot.prompt_tokens - 1) + 1)
        return tuple(_logprob_of(slot.tokens[position], slot.chain[position - 1]) for position in following)


class QuickRunner:
    """Implements `engine.scheduling.plan.Runner` for traces, where only numbers of tokens matter: it checks nothing, and a sequence
    draws the same token every time."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._cut: SimulatedTicket | None = None

    def token_of(self, sequence_id: int) -> int:
        """Live sequences differ, so that no two outputs are taken for the same one."""
        return sequence_id % self._vocab_size

    def dispatch(self, plan: StepPlan) -> SimulatedTicket:
        """Nothing to wait for."""
        rows = (*plan.decodes, *plan.prefills)
        tokens = tuple([self.token_of(row.sequence_id) for row in rows])
        return SimulatedTicket(plan, StepResult(tokens, (None,) * len(rows), ((),) * len(plan.prefills)))

    def is_done(self, ticket: SimulatedTicket) -> bool:
        """Simulated steps take no time."""
        del ticket
        return True

    def interrupt(self, ticket: SimulatedTicket) -> bool:
        """Its prompts draw nothing."""
        self._cut = ticket
        return True

    def collect(self, ticket: SimulatedTicket) -> StepResult:
        """The step's tokens."""
        cut, self._cut = self._cut, None
        return ticket.cut_result if cut is ticket else ticket.result


def _check_bucket(plan: StepPlan) -> None:
    padded = sum(round_to_block(len(chunk.tokens)) for chunk in plan.prefills)
    _require(len(plan.decodes) <= plan.bucket.decode_rows, f"{len(plan.decodes)} decode rows do not fit {plan.bucket}")
    _require(padded <= plan.bucket.prefill_tokens, f"{padded} prefill rows do not fit {plan.bucket}")
    rows = [row.slot for row in (*plan.decodes, *plan.prefills)]
    _require(len(dict.fromkeys(rows)) == len(rows), "a slot has two rows in one step")
    _require(not plan.is_empty, "a step without rows")


def _next_chain(chain: list[int], token: int) -> int:
    return _mix((chain[-1] if chain else 1) * _MIX + token + 1)


def _mix(value: int) -> int:
    """SplitMix64's finaliser, never `_UNWRITTEN`."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return (value ^ (value >> 31)) or 1


def _logprob_of(token: int, mixed: int) -> TokenLogprob:
    return TokenLogprob(-float((mixed + token) % 1000) / 100)


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise CacheMixup(message)
