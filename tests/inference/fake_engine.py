"""An engine that speaks the real frames and needs no model: it answers each prompt with a text it is given.

In a test it lives on the same event loop; `python -m tests.inference.fake_engine --fd N --config-json J` is a process.
"""

import argparse
import asyncio
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import msgspec

from engine.frames import FrameReader, encode_frame
from engine.scheduling.lanes import final_lane
from engine.wire import (
    HEARTBEAT_S,
    Abort,
    CommonPrefixes,
    Drain,
    EngineConfig,
    Fatal,
    FinishReason,
    Heartbeat,
    Load,
    ModelCard,
    Pause,
    Prepared,
    Progress,
    Ready,
    Resume,
    SequenceEvent,
    SetPolicies,
    StepDone,
    StepRecord,
    Submit,
    TenantLoad,
    ToEngine,
    TokenLogprob,
    TopLogprob,
    WorkShare,
)

STEP_S_ENV = "FAIRLANE_TEST_ENGINE_STEP_S"
"""How long a step of the process takes; benchmarks of the control plane set 0."""

type Answer = Callable[[Submit], tuple[int, ...]]
"""Token ids that a submitted sequence is answered with; the model's eos id ends it."""


@dataclass
class _Row:
    submit: Submit
    answer: tuple[int, ...]
    sent: int = 0


@dataclass
class FakeEngine(asyncio.Protocol):
    """One token a step for each sequence, `max_rows` at a time, the others wait. `hold` stops the steps."""

    card: ModelCard
    answer: Answer
    step_s: float = 0.0
    max_rows: int = 8
    hold: bool = False
    fail_after_steps: int | None = None
    drain: Drain = field(default_factory=Drain)
    submits: list[Submit] = field(default_factory=list[Submit])
    aborted: list[int] = field(default_factory=list[int])
    prefixes: CommonPrefixes | None = None
    policies: SetPolicies | None = None
    running: dict[int, _Row] = field(default_factory=dict[int, _Row])
    queued: dict[int, _Row] = field(default_factory=dict[int, _Row])
    paused: set[int] = field(default_factory=set[int])
    num_steps: int = 0
    query_tokens: int = 0
    hit_tokens: int = 0
    on_lost: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self._frames = FrameReader(msgspec.msgpack.Decoder(ToEngine))
        self._transport: asyncio.WriteTransport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._began_ns = 0

    # ---- connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._cancel_step()
        self.on_lost()

    def data_received(self, data: bytes) -> None:
        for message in self._frames.feed(data):
            match message:
                case Submit():
                    self.submits.append(message)
                    self.query_tokens += len(message.prompt)
                    self.hit_tokens += len(message.prompt) // 16 * 16
                    self.queued[message.sequence_id] = _Row(message, self.answer(message))
                case Abort(sequence_ids):
                    self._abort(sequence_ids)
                case Pause(sequence_ids):
                    self.paused.update(sequence_ids)
                case Resume(sequence_ids):
                    self.paused.difference_update(sequence_ids)
                case CommonPrefixes():
                    self.prefixes = message
                case SetPolicies():
                    self.policies = message
                case _:
                    self.die()
        self.go()

    def become_ready(self, export_dir: str) -> None:
        """What an engine says on its way up."""
        for phase in ("prepare", "load"):
            for done in (0, 1):
                self.send(Progress(phase, done, 1))
        self.send(Prepared(export_dir))
        self.send(Ready(self.card, "cpu", "xla", {"load": 0.1, "compile": 0.2}))

    def die(self) -> None:
        """The connection breaks, as when the process is killed."""
        if self._transport is not None:
            self._transport.abort()

    def send(self, message: msgspec.Struct) -> None:
        if self._transport is not None:
            self._transport.write(encode_frame(message))

    # ---- steps

    def go(self) -> None:
        """Begin stepping where there is work and nothing holds it."""
        if self._timer is None and not self.hold and (self.running.keys() - self.paused or self.queued):
            self._began_ns = time.monotonic_ns()
            self._timer = asyncio.get_running_loop().call_later(self.step_s, self._step)

    def _cancel_step(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _abort(self, sequence_ids: tuple[int, ...]) -> None:
        self.aborted.extend(sequence_ids)
        self.paused.difference_update(sequence_ids)
        ended = [i for i in sequence_ids if self.running.pop(i, None) or self.queued.pop(i, None)]
        self.send(StepDone(tuple(SequenceEvent(i, finish=FinishReason.ABORT, message="aborted") for i in ended), self.load()))

    def _step(self) -> None:
        self._timer = None
        self.num_steps += 1
        if self.fail_after_steps is not None and self.num_steps > self.fail_after_steps:
            self.die()
            return
        planned_ns = self._began_ns
        started = list(self.queued)[: self.max_rows - len(self.running)]
        for sequence_id in started:
            self.running[sequence_id] = self.queued.pop(sequence_id)
        rows = {sequence_id: row for sequence_id, row in self.running.items() if sequence_id not in self.paused}
        events = tuple(self._advance(sequence_id, row, sequence_id in started, planned_ns) for sequence_id, row in rows.items())
        self.send(StepDone(events, self.load(), self._record(planned_ns, started, rows)))
        self.go()

    def _advance(self, sequence_id: int, row: _Row, is_first: bool, planned_ns: int) -> SequenceEvent:
        sampling = row.submit.sampling
        token_id = row.answer[row.sent]
        row.sent += 1
        is_stop = (token_id in self.card.eos_token_ids and not sampling.ignore_eos) or token_id in sampling.stop_token_ids
        is_stop = is_stop and row.sent > sampling.min_tokens
        is_long = row.sent == min(sampling.max_tokens, len(row.answer))
        finish = FinishReason.STOP if is_stop else FinishReason.LENGTH if is_long else None
        if finish is not None:
            del self.running[sequence_id]
            self.paused.discard(sequence_id)
        prompt = row.submit.prompt
        return SequenceEvent(
            sequence_id,
            (token_id,),
            (self._score(token_id, sampling.logprobs),) if sampling.logprobs >= 0 else (),
            finish,
            token_id if is_stop else None,
            cached_tokens=len(prompt) // 16 * 16 if is_first else -1,
            scheduled_ns=planned_ns if is_first else 0,
            lane=final_lane(row.submit, len(prompt) % 16, fast_prompt_tokens=16) if is_first else "",
            prompt_logprobs=tuple(self._score(i, sampling.prompt_logprobs) for i in prompt[1:])
            if is_first and sampling.prompt_logprobs >= 0
            else (),
        )

    def _score(self, token_id: int, num_top: int) -> TokenLogprob:
        return TokenLogprob(-0.5, tuple(TopLogprob((token_id + rank) % self.card.vocab_size, -0.5 - rank) for rank in range(num_top)))

    def _record(self, planned_ns: int, started: list[int], rows: dict[int, _Row]) -> StepRecord:
        shares = tuple(
            WorkShare(sequence_id, row.submit.tenant_id, 0, len(row.submit.prompt), 1, draws=True)
            if sequence_id in started
            else WorkShare(sequence_id, row.submit.tenant_id, 1, 0, row.sent, draws=True)
            for sequence_id, row in rows.items()
        )
        prefill_tokens = sum(share.prefill_tokens for share in shares)
        now_ns = time.monotonic_ns()
        return StepRecord(self.num_steps, planned_ns, planned_ns, now_ns, now_ns, "d8", len(rows) - len(started), prefill_tokens, 0, shares)

    def load(self) -> Load:
        return Load(
            time_ns=time.monotonic_ns(),
            last_sequence_id=self.submits[-1].sequence_id if self.submits else 0,
            running=dict(Counter(row.submit.lane for row in self.running.values())),
            queued=dict(Counter(row.submit.lane for row in self.queued.values())),
            oldest_queued_ns=0,
            pages_free=self.card.num_pages - len(self.running),
            pages_used=len(self.running),
            pages_cached=0,
            prefix_query_tokens=self.query_tokens,
            prefix_hit_tokens=self.hit_tokens,
            tenants=self._tenants(),
            drain=self.drain,
        )

    def _tenants(self) -> tuple[TenantLoad, ...]:
        waiting = Counter((row.submit.tenant_id, row.submit.lane) for row in self.queued.values())
        tokens: Counter[tuple[str, str]] = Counter()
        for row in self.queued.values():
            tokens[row.submit.tenant_id, row.submit.lane] += len(row.submit.prompt)
        return tuple(TenantLoad(*key, 0, rows, tokens[key]) for key, rows in waiting.items())

    def expire_queued(self) -> None:
        """What waits was given up, as a scheduler does after the longest wait."""
        queued, self.queued = self.queued, {}
        events = (SequenceEvent(i, finish=FinishReason.EXPIRED, lane=row.submit.lane) for i, row in queued.items())
        self.send(StepDone(tuple(events), self.load()))


def counting_answer(submit: Submit) -> tuple[int, ...]:
    """Digits for ever: deterministic, and no eos."""
    return tuple(33 + (submit.sampling.seed + position) % 10 for position in range(submit.sampling.max_tokens))


async def _serve(sock: socket.socket, config: EngineConfig) -> None:
    card = msgspec.json.decode((Path(config.export_dir) / "model.json").read_bytes(), type=ModelCard)
    gone = asyncio.Event()
    engine = FakeEngine(card, counting_answer, step_s=float(os.environ.get(STEP_S_ENV, "0.005")), on_lost=gone.set)
    await asyncio.get_running_loop().create_connection(lambda: engine, sock=sock)
    if config.model == "broken":
        engine.send(Fatal("ModelError", "this model is broken: choose another with --model"))
        os._exit(1)
    if config.model == "misconfigured":
        engine.send(Fatal("ConfigError", "max_num_seqs is 0: give at least 1"))
        os._exit(1)
    engine.become_ready(config.export_dir)
    while not gone.is_set():
        engine.send(Heartbeat(engine.load()))
        await asyncio.sleep(HEARTBEAT_S)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--config-json", required=True)
    arguments = parser.parse_args()
    config = msgspec.json.decode(arguments.config_json, type=EngineConfig)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    asyncio.run(_serve(socket.socket(fileno=arguments.fd), config))


if __name__ == "__main__":
    main()
