"""One file that holds a minute of an appliance: steps, requests, metrics, policies, settings without secrets.

BundleError              it can not be read; the message says what it is
"""

import gzip
import zlib
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from appliance.telemetry.explain.pieces import Recorded
from appliance.telemetry.requests import RequestReport
from engine.wire import Load, StepRecord, TenantPolicy

FORMAT = 1
MAX_BUNDLE_BYTES = 512 * 1024 * 1024
"""Of a bundle's content: a file that unpacks to more is none of ours."""


class BundleError(Exception):
    """The file is no bundle, or one of another version."""


class Bundle(msgspec.Struct, frozen=True, kw_only=True):
    """All times are `monotonic_ns` of the machine it was made on, but `made_at`."""

    format: int = FORMAT
    version: str
    """Of the appliance."""
    reason: str
    made_at: datetime
    made_ns: int
    settings: dict[str, Any]
    """Secrets are masked."""
    policies: list[TenantPolicy]
    load: Load | None
    metrics: str
    """As Prometheus would have scraped them."""
    floor_ns: int
    since_ns: int
    """Steps before this time are not in it, nor those of an engine before its first one here; 0: none was forgotten."""
    steps: list[StepRecord]
    requests: list[RequestReport]
    """That ended in its time."""
    running: list[RequestReport]
    """As if they had ended when it was made."""

    def find(self, request_id: str) -> tuple[RequestReport, bool] | None:
        """A request and whether it was running."""
        for reports, is_running in ((self.running, True), (self.requests, False)):
            for report in reports:
                if report.request_id == request_id:
                    return report, is_running
        return None

    def recorded(self, report: RequestReport) -> Recorded:
        """What it has of a request's time."""
        own = [step for step in self.steps if step.engine == report.engine]
        records = [step for step in own if step.committed_ns >= report.submitted_ns and step.planned_ns <= report.ended_ns]
        return Recorded(records, own[0].planned_ns if self.since_ns and own else self.since_ns, self.floor_ns)


def write_bundle(path: Path, bundle: Bundle) -> None:
    """As gzipped JSON; whoever looks sees all of it or nothing."""
    draft = path.with_suffix(".part")
    draft.write_bytes(gzip.compress(msgspec.json.encode(bundle), compresslevel=4))
    draft.replace(path)


def read_bundle(path: Path) -> Bundle:
    """Raises `BundleError`."""
    try:
        with gzip.open(path) as file:
            content = file.read(MAX_BUNDLE_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise BundleError(f"{path} can not be read as a bundle: {getattr(error, 'strerror', None) or error}") from error
    if len(content) > MAX_BUNDLE_BYTES:
        raise BundleError(f"{path} holds more than {MAX_BUNDLE_BYTES} bytes: it is no bundle")
    try:
        return msgspec.json.decode(content, type=Bundle)
    except msgspec.DecodeError as error:
        raise BundleError(f"{path} is no bundle of this version ({error}): open it with the version of fairlane that made it") from error
