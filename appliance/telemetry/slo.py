"""Service level objectives: each request is judged against its tenant's exact target, and counted.

Judging is pure. Counters are for Prometheus' rules; attainment, budget and burn rate are told without Prometheus from what
`slo_track` keeps.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge

from appliance.telemetry import families as f
from appliance.telemetry.requests import Outcome, RequestReport, counter, gauge
from appliance.telemetry.slo_track import MINUTE_S, WINDOWS_S, Track
from appliance.telemetry.tenant_labels import TenantLabels
from engine.wire import TenantPolicy

type Slo = Literal["ttft", "tpot"]
type Key = tuple[str, str, Slo]
"""Tenant, lane, SLO."""

BUDGET_WINDOW = "3d"
FIRST_LANE = "fast"
"""Where a request counts that was refused before a lane was proposed, for a tenant without a default lane."""


def judge(report: RequestReport, ttft_target_s: float | None, tpot_target_s: float | None) -> dict[Slo, bool]:
    """Whether a request met each SLO that it is counted for.

    Not counted are 4xx (a tenant's own ceiling too), and what a client gave up, or its own deadline ended, before the target had
    passed. Bad are 503, errors, time-outs, and what was late.
    """
    judged: dict[Slo, bool] = {}
    if ttft_target_s is not None and (is_good := _ttft_is_good(report, ttft_target_s)) is not None:
        judged["ttft"] = is_good
    if tpot_target_s is not None and (is_good := _tpot_is_good(report, tpot_target_s)) is not None:
        judged["tpot"] = is_good
    return judged


def _ttft_is_good(report: RequestReport, target_s: float) -> bool | None:
    waited_s = ((report.first_sent_ns or report.ended_ns) - report.received_ns) / 1e9
    if report.outcome is Outcome.REJECTED:
        return False if report.status >= 500 else None
    if report.outcome is Outcome.FAILED:
        return False
    if report.first_sent_ns or report.outcome is Outcome.COMPLETED:
        return waited_s <= target_s
    was_given_up = report.outcome is Outcome.CANCELLED or report.cause == "deadline"
    return None if was_given_up and waited_s <= target_s else False


def _tpot_is_good(report: RequestReport, target_s: float) -> bool | None:
    if report.outcome is Outcome.FAILED and report.first_token_ns:
        return False
    if report.outcome is Outcome.REJECTED or report.tokens_after_first <= 0:
        return None
    return (report.last_token_ns - report.first_token_ns) / 1e9 / report.tokens_after_first <= target_s


class SloView(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant, lane and SLO. Attainment and budget are those of the last three days, or since the start."""

    tenant: str
    lane: str
    slo: str
    """ttft or tpot."""
    target_s: float
    objective: float
    """Share of requests that must meet the target."""
    good: int
    bad: int
    """Since the start of the process."""
    attainment: float | None
    """Share that met it; null without requests."""
    budget_left: float
    """Of the requests that may miss it: 1 is all, 0 none, below 0 overspent."""
    burn: dict[str, float]
    """By window: how many times as fast as allowed the budget is spent."""


class _Shown:
    """The series of one tenant, lane and SLO. They exist at 0 from here on; attainment and burn rate from the first request on."""

    def __init__(self, book: "SloBook", labels: tuple[str, ...]) -> None:
        for outcome in f.SLO_OUTCOMES:
            book.outcomes.labels(*labels, outcome)
        self._book = book
        self._labels = labels
        self._target = book.target.labels(*labels)
        self._objective = book.objective.labels(*labels)
        self._budget = book.budget.labels(*labels)
        self._burn: Mapping[str, Gauge] = {}
        self._state: tuple[float, ...] = ()

    def follow(self, key: Key, track: Track, now_s: float) -> None:
        """Show what is true now. Windows are told to the minute, so nothing is to be done before a request or the minute's end."""
        has_requests = track.good + track.bad > 0
        state = (track.target_s, track.objective, track.good, track.bad, now_s // MINUTE_S if has_requests else 0)
        if state == self._state:
            return
        self._state = state
        view = _view(key, track, now_s)
        self._target.set(view.target_s)
        self._objective.set(view.objective)
        self._budget.set(view.budget_left)
        if view.attainment is not None:
            self._book.attainment.labels(*self._labels).set(view.attainment)
        if has_requests and not self._burn:
            self._burn = {window: self._book.burn.labels(*self._labels, window) for window in view.burn}
        for window, child in self._burn.items():
            child.set(view.burn[window])


class SloBook:
    """Counts, by tenant, lane and SLO."""

    def __init__(self, registry: CollectorRegistry, labels: TenantLabels, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._labels = labels
        self._clock_s = clock_s
        self._model = ("", "", "")
        self._policies: Mapping[str, TenantPolicy] = {}
        self._shown: dict[Key, _Shown] = {}
        self._tracks: dict[Key, Track] = {}
        self.outcomes = counter(registry, f.SLO_REQUESTS)
        self.target = gauge(registry, f.SLO_TARGET)
        self.objective = gauge(registry, f.SLO_OBJECTIVE)
        self.attainment = gauge(registry, f.SLO_ATTAINMENT)
        self.budget = gauge(registry, f.SLO_BUDGET)
        self.burn = gauge(registry, f.SLO_BURN)

    @property
    def metrics(self) -> tuple[Counter | Gauge, ...]:
        """In the order they are shown."""
        return (self.outcomes, self.target, self.objective, self.attainment, self.budget, self.burn)

    def bind(self, model: str, quantization: str, gpu_type: str) -> None:
        """Name the model that serves from now on."""
        self._model = (model, quantization, gpu_type)
        self._shown.clear()
        self.sync(self._policies)

    def sync(self, policies: Mapping[str, TenantPolicy]) -> None:
        """All tenants' policies now: new targets count from 0, those of removed tenants and tiers are forgotten."""
        self._policies = policies
        wanted = {key: target_s for policy in policies.values() for key, target_s in targets_of(policy)}
        for key in self._tracks.keys() - wanted.keys():
            del self._tracks[key]
            self._shown.pop(key, None)
            self._remove({"tenant": key[0], "lane": key[1], "slo": key[2]})
        for key, target_s in wanted.items():
            objective = policies[key[0]].objective_of(key[1])
            track = self._tracks.setdefault(key, Track(target_s, objective))
            track.target_s, track.objective = target_s, objective
        self.show()

    def show(self) -> None:
        """Series of tenants that have a label, at 0 from the first. Call it now and then: windows move on."""
        if not any(self._model):
            return
        own, now_s = frozenset(self._labels.own), self._clock_s()
        for key, track in self._tracks.items():
            if key[0] in own:
                shown = self._shown.get(key)
                if shown is None:
                    shown = self._shown[key] = _Shown(self, (key[1], key[0], *self._model, key[2]))
                shown.follow(key, track, now_s)

    def forget(self, labels: Iterable[str]) -> None:
        """Drop the series of tenants that have no label any more."""
        for label in labels:
            for key in [key for key in self._shown if key[0] == label]:
                del self._shown[key]
            self._remove({"tenant": label})

    def _remove(self, labels: dict[str, str]) -> None:
        for metric in self.metrics:
            metric.remove_by_labels(labels)

    def note(self, report: RequestReport) -> dict[Slo, bool]:
        """Judge and count a settled request; whether it met each SLO it was counted for."""
        policy = self._policies.get(report.tenant_id)
        if policy is None:
            return {}
        lane = report.lane if report.lane in policy.lanes else FIRST_LANE if policy.default_lane == "auto" else policy.default_lane
        is_placed = report.lane == lane
        ttft_s = report.ttft_target_s if is_placed and report.submitted_ns else policy.ttft_s.get(lane)
        tpot_s = report.tpot_target_s if is_placed and report.submitted_ns else policy.tpot_s.get(lane)
        judged = judge(report, ttft_s, tpot_s)
        now_s = self._clock_s()
        for slo, is_good in judged.items():
            track = self._tracks.get((report.tenant_id, lane, slo))
            if track is not None:
                track.note(is_good=is_good, now_s=now_s)
            labels = (lane, self._labels.of(report.tenant_id), *self._model, slo)
            self.outcomes.labels(*labels, "good" if is_good else "bad").inc()
        return judged

    def views(self, tenant: str | None = None, *, counted_only: bool = False) -> list[SloView]:
        """Every SLO of every tenant, or of one; `counted_only`: those that a request was counted for."""
        now_s = self._clock_s()
        tracks = ((key, track) for key, track in self._tracks.items() if track.good + track.bad or not counted_only)
        return [_view(key, track, now_s) for key, track in sorted(tracks, key=lambda item: item[0]) if tenant in (None, key[0])]


def targets_of(policy: TenantPolicy) -> Iterator[tuple[Key, float]]:
    """Each SLO of a tenant with its target (seconds)."""
    slos: Iterable[tuple[Slo, Mapping[str, float]]] = (("ttft", policy.ttft_s), ("tpot", policy.tpot_s))
    for slo, targets in slos:
        for lane, target_s in targets.items():
            if lane in policy.lanes:
                yield (policy.tenant_id, lane, slo), target_s


def _view(key: Key, track: Track, now_s: float) -> SloView:
    good, bad = track.since(WINDOWS_S[BUDGET_WINDOW], now_s)
    burn = {window: round(track.burn(window_s, now_s), 3) for window, window_s in WINDOWS_S.items()}
    return SloView(
        tenant=key[0],
        lane=key[1],
        slo=key[2],
        target_s=track.target_s,
        objective=track.objective,
        good=track.good,
        bad=track.bad,
        attainment=round(good / (good + bad), 6) if good + bad else None,
        budget_left=round(1 - track.burn(WINDOWS_S[BUDGET_WINDOW], now_s), 6),
        burn=burn,
    )
