"""Sends OTLP messages to a collector: one POST each, in a thread, with a time-out (OTLP 1.x over HTTP, binary protobuf)."""

import asyncio
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Protocol

TIMEOUT_S = 10.0
RETRYABLE = frozenset({429, 502, 503, 504})
"""What the specification lets a client try again."""


class Message(Protocol):
    """Of opentelemetry-proto."""

    def SerializeToString(self) -> bytes:  # noqa: N802 (protobuf's name)
        ...


class NotSent(Exception):
    """The collector did not take it. `may_retry`: it may another time."""

    def __init__(self, reason: str, *, may_retry: bool) -> None:
        super().__init__(reason)
        self.may_retry = may_retry


@dataclass(frozen=True, slots=True)
class Collector:
    """Where to: `endpoint` as OTEL_EXPORTER_OTLP_ENDPOINT has it, without the signal's path."""

    endpoint: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    timeout_s: float = TIMEOUT_S

    async def send(self, path: str, message: Message) -> bytes:
        """POST to `v1/traces` or `v1/metrics`; the answer's body. Raises `NotSent`."""
        return await asyncio.to_thread(self._post, path, message)

    def _post(self, path: str, message: Message) -> bytes:
        request = urllib.request.Request(
            f"{self.endpoint.rstrip('/')}/{path}",
            data=message.SerializeToString(),
            headers={**self.headers, "Content-Type": "application/x-protobuf"},
        )
        try:
            with urllib.request.urlopen(request, timeout=self.timeout_s) as answer:
                return answer.read()
        except urllib.error.HTTPError as error:
            with error:
                raise NotSent(f"status {error.code}", may_retry=error.code in RETRYABLE) from error
        except (OSError, HTTPException) as error:
            raise NotSent(str(error) or type(error).__name__, may_retry=True) from error
