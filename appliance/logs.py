"""Log lines of the control plane: one object a line, or coloured text on a terminal."""

import logging
from typing import Any, Literal, TextIO, cast

import msgspec
import structlog

from appliance.terminal import Terminal

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def set_up_logs(level: str, format: Literal["auto", "json", "console"], out: Terminal) -> None:
    """Once a process, before anything is logged. Libraries that use `logging` are heard from warnings on."""
    stream = cast(TextIO, out)  # all that these libraries use of one
    as_json = format == "json" or (format == "auto" and not out.isatty())
    renderer: list[Any] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=_to_json)]
        if as_json
        else [structlog.dev.ConsoleRenderer(colors=out.isatty())]
    )
    structlog.configure(
        processors=[structlog.processors.add_log_level, structlog.processors.TimeStamper(fmt="iso", utc=True), *renderer],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(stream=stream, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")


def _to_json(event: dict[str, Any], **_: object) -> str:
    return msgspec.json.encode(event, enc_hook=str).decode()
