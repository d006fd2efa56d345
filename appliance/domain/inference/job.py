"""One admitted request while the engine works on it: its outputs, its ticket, its one end."""

import contextlib
from asyncio import Future, TimerHandle, get_running_loop
from collections.abc import Callable, Iterator, Sequence

from appliance.domain.admission.service import Ticket
from appliance.domain.inference.backpressure import Backpressure, Patience, Reader
from appliance.domain.inference.choice import Choice, Delta
from appliance.domain.inference.facts import QUEUE_TIMEOUT, JobFacts, engine_gone, verdict_of
from appliance.errors import ApplianceError, EngineFailed, Unavailable
from appliance.telemetry.requests import MAX_BLOCKED_SPANS, MAX_MESSAGE_CHARS, RequestReport
from appliance.telemetry.split import Split, split
from engine.client import EngineClient
from engine.wire import FinishReason, SequenceEvent, Submit

BLOCKED_NS = 1_000_000
"""A write that takes longer waited for the client."""


class Job:
    """Events of the engine go in by plain callbacks; whoever answers the client waits for `gained` or `finished`.

    Exactly one `settle` ends it: the one of `running`, or the sweep's where nobody ever began to answer.
    """

    def __init__(
        self,
        facts: JobFacts,
        choices: Sequence[Choice],
        ticket: Ticket,
        client: EngineClient,
        *,
        on_settled: Callable[["Job", RequestReport], None],
        gap_observer: Callable[[str], Callable[[float], None]],
        clock_ns: Callable[[], int],
    ) -> None:
        self.facts = facts
        self.choices = choices
        self.is_running = False
        self.is_settled = False
        self.scheduled_ns = 0
        self._ticket = ticket
        self._client = client
        self._on_settled = on_settled
        self.lane = facts.lane
        """As proposed, until the scheduler says in which one it runs."""
        self._is_placed = False
        self._gap_observer = gap_observer
        self._observe_gap_s: Callable[[float], None] | None = None
        self._clock_ns = clock_ns
        self._choice_of: dict[int, Choice] = {}
        """Outputs by sequence id, until the engine ends them."""
        self._touched: dict[int, Choice] = {}
        """Outputs with events since the last look, by index."""
        self._waiter: Future[None] | None = None
        self._interruption: BaseException | None = None
        self._first_sent_ns = 0
        self._over_ns = self._fed_ns = self._worst_gap_ns = 0
        self._sequence_ids: tuple[int, ...] = ()
        self._blocked_ns: list[tuple[int, int]] = []
        self._backpressure: Backpressure | None = None
        self._shadowed = ticket.shadowed
        self._expiry: TimerHandle | None = None
        self._deadline: TimerHandle | None = None
        self._is_cut = False
        """Its deadline ended it, after some output."""

    # ---- from the engine

    def submit(self, submits: Sequence[Submit]) -> None:
        """Hand one sequence for each output to the engine. Raises `EngineGone`."""
        self._sequence_ids = tuple(submit.sequence_id for submit in submits)
        for submit, choice in zip(submits, self.choices, strict=True):
            self._client.submit(submit, self._take)
            self._choice_of[submit.sequence_id] = choice
        loop, waited_s = get_running_loop(), (self._clock_ns() - self.facts.received_ns) / 1e9
        if self.facts.queue_ttl_s is not None:
            self._expiry = loop.call_later(self.facts.queue_ttl_s - waited_s, self._expire)
        if self.facts.deadline_ms is not None:
            self._deadline = loop.call_later(self.facts.deadline_ms / 1e3 - waited_s, self._end_at_deadline)

    def note_scheduled(self, time_ns: int) -> None:
        """A step held prefill work of this request for the first time."""
        if not self.scheduled_ns:
            self.scheduled_ns = time_ns
            self._ticket.start()
            self._stop_expiry()

    def _expire(self) -> None:
        """It has waited for its first step as long as its tier allows."""
        self._expiry = None
        if self.facts.shadow_mode:
            self._shadowed = self._shadowed or QUEUE_TIMEOUT
            return
        self.interrupt(self.facts.queue_error())

    def _end_at_deadline(self) -> None:
        """Its own deadline: outputs end with what they have, and where none has anything it is an error."""
        self._deadline = None
        if not any(choice.num_tokens for choice in self.choices):
            self.interrupt(self.facts.deadline_error())
            return
        self._client.abort(self._choice_of)
        self._choice_of = {}
        for choice in self.choices:
            if not choice.is_over:
                self._is_cut = True
                choice.cut()
                self._touched[choice.index] = choice
        self._wake()

    def _expire_in_lane(self) -> None:
        """The scheduler gave it up: it would have been late."""
        self.interrupt(self.facts.lane_error((self._clock_ns() - self.facts.received_ns) / 1e9, self.lane))

    def _stop_expiry(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    def interrupt(self, reason: BaseException) -> None:
        """Let whoever waits see `reason` instead of more output. The first one counts."""
        if self._interruption is None:
            self._interruption = reason
            self._wake()

    def _take(self, event: SequenceEvent) -> None:
        """The engine's sink: runs inside the connection's callback, so no error may leave it."""
        choice = self._choice_of.get(event.sequence_id)
        if choice is None:
            return
        if event.finish is not None:
            del self._choice_of[event.sequence_id]
        try:
            self._feed(choice, event)
        except Exception as error:  # noqa: BLE001 (whatever it is, it belongs to the request)
            self.interrupt(error)

    def _feed(self, choice: Choice, event: SequenceEvent) -> None:
        now_ns, before_ns, tokens_before = self._clock_ns(), choice.last_token_ns, choice.num_tokens
        if event.scheduled_ns:
            self.note_scheduled(event.scheduled_ns)
        if event.lane and not self._is_placed:
            self.lane, self._is_placed = event.lane, True
        was_over = choice.is_over
        choice.feed(event, now_ns)
        if was_over:
            return
        if choice.is_over and self.is_over:
            self._over_ns, self._fed_ns = now_ns, self._clock_ns()
        if event.token_ids and before_ns > self._resumed_ns:  # a gap that the reader made says nothing about us
            self._observe_gap_s = self._observe_gap_s or self._gap_observer(self.lane)
            self._observe_gap_s((now_ns - before_ns) / 1e9)
            self._worst_gap_ns = max(self._worst_gap_ns, now_ns - before_ns)
        if self._backpressure is not None:
            self._backpressure.add(choice.num_tokens - tokens_before)
        if event.finish is FinishReason.EXPIRED:
            self._expire_in_lane()
        elif choice.failure is not None:
            self.interrupt(self._engine_error(choice.failure))
        if choice.ended_here and event.finish is None:
            self._client.abort([event.sequence_id])
        self._touched[choice.index] = choice
        if self.facts.streamed or self.is_over:
            self._wake()

    def _engine_error(self, message: str) -> ApplianceError:
        """The engine failed this request alone, or it is gone: then another one may serve it soon."""
        if self._client.is_connected:
            return EngineFailed(message)
        return engine_gone(message)

    # ---- for whoever answers

    @property
    def is_over(self) -> bool:
        """Every output has ended."""
        return all(choice.is_over for choice in self.choices)

    async def gained(self) -> list[tuple[Choice, Delta]]:
        """What outputs gained since the last call, at least one step's worth; empty when all have ended.

        Raises:
            Cancellation, EngineFailed, Unavailable: the request ends here.
        """
        while True:
            if self._interruption is not None:
                raise self._interruption
            touched, self._touched = self._touched, {}
            if self._backpressure is not None:
                self._backpressure.take()
            gained = [(choice, delta) for choice in touched.values() if not (delta := choice.drain()).is_empty]
            if gained or (not touched and self.is_over):
                return gained
            if not touched:
                await self._wait()

    async def finished(self) -> list[tuple[Choice, Delta]]:
        """All outputs, whole. Raises as `gained`."""
        while self._interruption is None and not self.is_over:
            await self._wait()
        if self._interruption is not None:
            raise self._interruption
        return [(choice, choice.drain()) for choice in self.choices]

    def note_sent(self) -> None:
        """The first bytes of output reached the transport."""
        self._first_sent_ns = self._clock_ns()

    def keep_pace_with(self, reader: Reader, patience: Patience) -> None:
        """Draw tokens no faster than the reader takes them."""
        self._backpressure = Backpressure(
            reader,
            patience,
            pause=lambda: self._client.pause(self._choice_of),
            resume=lambda: self._client.resume(self._choice_of),
            clock_ns=self._clock_ns,
        )

    def note_written(self, began_ns: int, num_bytes: int) -> None:
        """A write that began then is over; where it took long, the client took nothing meanwhile."""
        if self._backpressure is not None:
            self._backpressure.note_written(num_bytes)
        ended_ns = self._clock_ns()
        if ended_ns - began_ns >= BLOCKED_NS and len(self._blocked_ns) < MAX_BLOCKED_SPANS:
            self._blocked_ns.append((began_ns, ended_ns))

    @property
    def _paused_ns(self) -> tuple[tuple[int, int], ...]:
        return self._backpressure.pauses_ns if self._backpressure is not None else ()

    @property
    def _resumed_ns(self) -> int:
        """When its reader had caught up last; 0 where it never lagged."""
        return self._backpressure.spans_ns[-1][1] if self._backpressure is not None and self._backpressure.spans_ns else 0

    @property
    def _open_gap_ns(self) -> int:
        """How long its newest token has been the last one, if more were to come and its reader waits for them."""
        newest_ns = max(choice.last_token_ns for choice in self.choices)
        is_awaited = newest_ns > self._resumed_ns and not (self._backpressure is not None and self._backpressure.is_paused)
        return self._clock_ns() - newest_ns if newest_ns and not self._over_ns and is_awaited else 0

    @property
    def now_ns(self) -> int:
        return self._clock_ns()

    @property
    def split(self) -> Split:
        """Where its time went until now: that of its report, of which the rest is not needed."""
        longest = self._longest
        return split(
            received_ns=self.facts.received_ns,
            scheduled_ns=self.scheduled_ns,
            first_token_ns=longest.first_token_ns,
            last_token_ns=longest.last_token_ns,
            ended_ns=self._clock_ns(),
        )

    @property
    def _longest(self) -> Choice:
        """The output that ran longest."""
        return max(self.choices, key=lambda choice: choice.num_tokens)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Answer the client inside; when the block ends, however it does, the request is settled."""
        assert not self.is_running, "a request is answered once"
        self.is_running = True
        error: BaseException | None = None
        try:
            yield
        except BaseException as raised:
            error = raised
            raise
        finally:
            self.settle(error)

    def settle(self, error: BaseException | None) -> None:
        """The one end: the engine drops what is still alive, the ticket is given back, the outcome counted."""
        assert not self.is_settled, "a request has one outcome"
        self.is_settled = True
        self._client.abort(self._choice_of)
        self._choice_of = {}
        self._stop_expiry()
        if self._backpressure is not None:
            self._backpressure.close()
        if self._deadline is not None:
            self._deadline.cancel()
        report = self.report(error)
        refused = isinstance(error, Unavailable) and not self._first_sent_ns
        self._ticket.close(report.billed.tokens, refused=refused)
        self._on_settled(self, report)

    async def _wait(self) -> None:
        self._waiter = get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def report(self, error: BaseException | None = None) -> RequestReport:
        """All that is known of it, as if it ended now and so."""
        facts = self.facts
        first_ns = min((choice.first_token_ns for choice in self.choices if choice.first_token_ns), default=0)
        longest = self._longest
        firsts = self.choices[:: facts.outputs_per_prompt]
        verdict = verdict_of(error, has_begun=bool(self._first_sent_ns), is_cut=self._is_cut)
        return RequestReport(
            request_id=facts.request_id,
            route=facts.route,
            tenant_id=facts.tenant_id,
            lane=self.lane,
            outcome=verdict.outcome,
            status=verdict.status,
            error_code=verdict.error_code,
            rejection=QUEUE_TIMEOUT if verdict.error_code == QUEUE_TIMEOUT else "",
            shadowed=self._shadowed,
            key_id=facts.key_id,
            engine=facts.engine,
            stage=("decode" if first_ns else "prefill" if self.scheduled_ns else "queue") if verdict.cause else "",
            cause=verdict.cause,
            streamed=facts.streamed,
            num_sequences=len(self.choices),
            prompt_tokens=sum(len(choice.prompt.token_ids) for choice in firsts),
            cached_tokens=sum(choice.cached_tokens for choice in firsts),
            generated_tokens=sum(choice.num_tokens for choice in self.choices),
            delivered_tokens=sum(choice.num_drained_tokens for choice in self.choices) if self._first_sent_ns else 0,
            received_ns=facts.received_ns,
            scheduled_ns=self.scheduled_ns,
            first_token_ns=longest.first_token_ns,
            first_sent_ns=self._first_sent_ns if facts.streamed else first_ns,
            last_token_ns=longest.last_token_ns,
            tokens_after_first=max(0, longest.num_tokens - 1),
            worst_gap_s=max(self._worst_gap_ns, self._open_gap_ns) / 1e9,
            held_ns=facts.held_ns,
            read_ns=facts.read_ns,
            tokenized_ns=facts.tokenized_ns,
            submitted_ns=facts.opened_ns if self._sequence_ids else 0,
            over_ns=self._over_ns,
            fed_ns=self._fed_ns,
            ttft_target_s=facts.ttft_targets_s.get(self.lane),
            tpot_target_s=facts.tpot_targets_s.get(self.lane),
            sequence_ids=self._sequence_ids,
            trace=facts.trace,
            blocked_ns=tuple(self._blocked_ns),
            paused_ns=self._paused_ns,
            message=error.message[:MAX_MESSAGE_CHARS] if isinstance(error, ApplianceError) else "",
            ended_ns=self._clock_ns(),
        )
