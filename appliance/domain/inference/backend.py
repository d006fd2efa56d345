"""What serves now: the connections to the engines, the model's text half, the requests in their hands."""

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from appliance.domain.inference.facts import ENGINE_RETRY_AFTER_S, Cancellation
from appliance.domain.inference.job import Job
from appliance.errors import Unavailable
from appliance.telemetry.requests import RequestReport
from appliance.text.model import TextModel
from engine.client import EngineClient
from engine.wire import ONLY_ENGINE, StepDone

SWEEP_AFTER_NS = 10_000_000_000
"""A request that nobody began to answer for so long has lost its handler."""


@dataclass(frozen=True, slots=True)
class Served:
    """A ready engine and its model."""

    client: EngineClient
    model: TextModel
    fingerprint: str
    """Names what answers depend on: model, types, device."""
    loaded_s: int
    """Unix seconds."""
    engine: str = ONLY_ENGINE
    """The replica's name."""


class Backend:
    """Set by the engines' owners, read by each request."""

    def __init__(self, engine_of: Mapping[str, str] | None = None) -> None:
        """`engine_of`: the replica of each lane; None: one engine serves them all."""
        self._engine_of = engine_of
        self._served: dict[str, Served] = {}
        self._idle = asyncio.Event()
        self._jobs: dict[str, Job] = {}
        self._job_of: dict[tuple[str, int], Job] = {}
        """By engine and sequence id, until its first prefill chunk."""

    def serve(self, served: Served) -> None:
        """A new engine process is ready."""
        self._forget(served.engine)
        self._served[served.engine] = served

    def lose(self, engine: str = ONLY_ENGINE) -> None:
        """A replica's process is gone."""
        self._forget(engine)
        self._served.pop(engine, None)

    def _forget(self, engine: str) -> None:
        self._job_of = {key: job for key, job in self._job_of.items() if key[0] != engine}

    def require(self, lane: str | None = None) -> Served:
        """The engine of a lane; without one any engine: all have the same model. Raises `Unavailable` where it is not ready."""
        if lane is None or self._engine_of is None:
            served = next(iter(self._served.values()), None)
            what = "the engine is not ready"
        else:
            served = self._served.get(self._engine_of[lane])
            what = f"the engine of lane {lane!r} is down and is being started again: try again shortly, or use another lane"
        if served is None:
            raise Unavailable(what, reason="engine_down", retry_after_s=ENGINE_RETRY_AFTER_S)
        return served

    @property
    def num_live(self) -> int:
        return len(self._jobs)

    def live_jobs(self) -> Iterator[Job]:
        return iter(tuple(self._jobs.values()))

    def report_of(self, request_id: str) -> RequestReport | None:
        """Of a request in its hands, as if it ended now."""
        job = self._jobs.get(request_id)
        return job.report() if job is not None else None

    def cancel(self, request_id: str, reason: BaseException) -> bool:
        """End a request in its hands; false where there is none of this id."""
        job = self._jobs.get(request_id)
        if job is not None:
            job.interrupt(reason)
        return job is not None

    def reports(self) -> list[RequestReport]:
        """Of all requests in its hands, as if they ended now."""
        return [job.report() for job in self.live_jobs()]

    def add(self, job: Job, sequence_ids: list[int]) -> None:
        self._jobs[job.facts.request_id] = job
        self._job_of |= dict.fromkeys(((job.facts.engine, sequence_id) for sequence_id in sequence_ids), job)

    def remove(self, job: Job) -> None:
        self._jobs.pop(job.facts.request_id, None)  # not there where handing it over failed
        if not self._jobs:
            self._idle.set()

    async def wait_idle(self, timeout_s: float) -> None:
        """Until no request is in its hands, or the time is over."""
        if self._jobs:
            self._idle.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._idle.wait()

    def note_step(self, step: StepDone, engine: str = ONLY_ENGINE) -> None:
        """Tell requests that their prefill began: between then and the first token no event says so."""
        if step.record is None or not step.record.prefill_tokens:
            return
        for share in step.record.shares:
            job = self._job_of.pop((engine, share.sequence_id), None)
            if job is not None and not job.is_settled:
                job.note_scheduled(step.record.planned_ns)

    def oldest_queued_ns(self) -> dict[str, int]:
        """Receipt of the request of each lane that has waited longest for its first step."""
        oldest: dict[str, int] = {}
        for job in self._job_of.values():
            if not job.is_settled and not job.scheduled_ns:
                oldest[job.facts.lane] = min(job.facts.received_ns, oldest.get(job.facts.lane, job.facts.received_ns))
        return oldest

    def sweep(self, now_ns: int) -> None:
        """Settle requests whose answer never began: their handler was dropped between admission and answer."""
        for job in self.live_jobs():
            if not job.is_running and now_ns - job.facts.opened_ns > SWEEP_AFTER_NS:
                job.settle(Cancellation("disconnect"))
        self._job_of = {key: job for key, job in self._job_of.items() if not job.is_settled}
