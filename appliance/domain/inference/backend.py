"""What serves now: the connection to the engine, the model's text half, the requests in its hands."""

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from appliance.domain.inference.facts import Cancellation
from appliance.domain.inference.job import Job
from appliance.errors import Unavailable
from appliance.telemetry.requests import RequestReport
from appliance.text.model import TextModel
from engine.client import EngineClient
from engine.wire import StepDone

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


class Backend:
    """Set by the engine's owner, read by each request."""

    def __init__(self) -> None:
        self._served: Served | None = None
        self._idle = asyncio.Event()
        self._jobs: dict[str, Job] = {}
        self._job_of: dict[int, Job] = {}
        """By sequence id, until its first prefill chunk."""

    def serve(self, served: Served | None) -> None:
        """A new engine is ready, or (None) there is none."""
        self._served = served
        self._job_of.clear()

    def require(self) -> Served:
        """Raises `Unavailable` where no engine is ready."""
        if self._served is None:
            raise Unavailable("the engine is not ready", reason="engine_down", retry_after_s=1.0)
        return self._served

    @property
    def num_live(self) -> int:
        return len(self._jobs)

    def live_jobs(self) -> Iterator[Job]:
        return iter(tuple(self._jobs.values()))

    def report_of(self, request_id: str) -> RequestReport | None:
        """Of a request in its hands, as if it ended now."""
        job = self._jobs.get(request_id)
        return job.report() if job is not None else None

    def reports(self) -> list[RequestReport]:
        """Of all requests in its hands, as if they ended now."""
        return [job.report() for job in self.live_jobs()]

    def add(self, job: Job, sequence_ids: list[int]) -> None:
        self._jobs[job.facts.request_id] = job
        self._job_of |= dict.fromkeys(sequence_ids, job)

    def remove(self, job: Job) -> None:
        del self._jobs[job.facts.request_id]
        if not self._jobs:
            self._idle.set()

    async def wait_idle(self, timeout_s: float) -> None:
        """Until no request is in its hands, or the time is over."""
        if self._jobs:
            self._idle.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._idle.wait()

    def note_step(self, step: StepDone) -> None:
        """Tell requests that their prefill began: between then and the first token no event says so."""
        if step.record is None or not step.record.prefill_tokens:
            return
        for share in step.record.shares:
            job = self._job_of.pop(share.sequence_id, None)
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
        for sequence_id in [sequence_id for sequence_id, job in self._job_of.items() if job.is_settled]:
            del self._job_of[sequence_id]
