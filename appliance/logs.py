"""Log lines of the control plane: one object a line, or coloured text on a terminal."""

import logging
from collections.abc import MutableMapping
from typing import Any, Literal, TextIO, cast

import msgspec
import structlog

from appliance.terminal import Terminal

Level = Literal["debug", "info", "warning", "error"]
LEVELS: tuple[Level, ...] = ("debug", "info", "warning", "error")
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class LogLevel:
    """The least severe level that is written. It may change at any time."""

    def __init__(self, name: Level) -> None:
        self.name: Level = name

    def drop_below(self, _logger: object, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """structlog's processor. What is more severe than all our levels is written."""
        if _LEVELS.get(method, logging.CRITICAL) < _LEVELS[self.name]:
            raise structlog.DropEvent
        return event


def set_up_logs(level: LogLevel, format: Literal["auto", "json", "console"], out: Terminal) -> None:
    """Once a process, before anything is logged. Libraries that use `logging` are heard from warnings on.

    Tracebacks show no values: a local variable may hold a prompt or a key.
    """
    stream = cast(TextIO, out)  # all that these libraries use of one
    as_json = format == "json" or (format == "auto" and not out.isatty())
    renderer: list[Any] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=_to_json)]
        if as_json
        else [shorten_request, structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback)]
    )
    structlog.configure(
        processors=[
            level.drop_below,
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(stream=stream, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")


def shorten_request(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A request's line as people read it on a terminal: who, what came of it, how much, and where the time went."""
    if event.get("event") != "request":
        return event
    get = event.get
    pieces = [f"{name} {event[f'{name}_ms']:.0f}" for name in ("queue", "prefill", "decode", "write") if f"{name}_ms" in event]
    tokens = f"{get('prompt_tokens', 0)}+{get('generated_tokens', 0)} tokens" if pieces else ""
    time = f"{get('total_ms', 0):.0f} ms" + (f" ({', '.join(pieces)})" if pieces else "")
    why = get("rejection") or get("cause") or get("error") or ""
    words = (get("tenant", "-"), get("lane"), get("outcome"), why, get("status"), tokens, time, get("request_id"))
    kept = {name: event[name] for name in ("level", "timestamp") if name in event}
    return {**kept, "event": " ".join(str(word) for word in words if word not in ("", None))}


def _to_json(event: dict[str, Any], **_: object) -> str:
    return msgspec.json.encode(event, enc_hook=str).decode()
