"""The engine's settings that a simulation takes: all those that the scheduler reads, as flags made from `EngineConfig`."""

from collections.abc import Callable
from typing import Any, Literal, get_args, get_origin

import click
import msgspec

from engine.config import check_config
from engine.wire import EngineConfig

OF_THE_DEVICE = frozenset({
    "model", "served_model_name", "load_format", "dtype", "quantization", "kv_cache_dtype", "attention_backend", "seed", "nice",
    "gpu_memory_utilization", "kv_cache_memory_bytes", "cache_dir", "export_dir", "await_common_prefixes",
    "compile_after_ready_is_fatal", "async_scheduling", "preempt_every_steps",
    "tensor_parallel_size", "enforce_eager", "swap_space",
})  # fmt: skip
"""Settings that change nothing here: what they decide was measured, or does not exist without a device. There is no host memory to swap
to: what is preempted is computed again."""


def engine_flags[**P, R](command: Callable[P, R]) -> Callable[P, R]:
    """Add a flag for each of the scheduler's settings; the command gets them by field name, None where not given."""
    for field in reversed(msgspec.structs.fields(EngineConfig)):
        if field.name in OF_THE_DEVICE:
            continue
        flag = "--" + field.name.replace("_", "-")
        shown = f"As in docs/settings.md. [default: {_shown(field.default)}]"
        if field.type is bool:
            command = click.option(f"{flag}/--no-{flag[2:]}", field.name, default=None, help=shown)(command)
        else:
            command = click.option(flag, field.name, default=None, help=shown, metavar=_metavar(field.type))(command)
    return command


def config_of(flags: dict[str, Any]) -> EngineConfig:
    """The configuration of those flags.

    Raises:
        click.UsageError: a value of the wrong kind.
        ConfigError: a value out of its bounds.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    kinds = {field.name: field.type for field in msgspec.structs.fields(EngineConfig)}
    for name in given:
        if name.endswith("_buckets"):
            given[name] = [part for part in str(given[name]).split(",") if part]
    try:
        config = msgspec.convert(given, EngineConfig, strict=False)
    except msgspec.ValidationError as error:
        name = str(error).partition(" - at `$.")[2].rstrip("`").partition("[")[0]
        raise click.UsageError(f"--{name.replace('_', '-')} is {flags[name]!r}: give {_allowed(kinds[name])}") from error
    check_config(config)
    return config


def _metavar(kind: Any) -> str:
    """As `fairlane serve --help` has it."""
    if get_origin(kind) is Literal:
        return f"[{'|'.join(get_args(kind))}]"
    return {int: "N", float: "X"}.get(kind, "N,N")


def _allowed(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    return {int: "a whole number", float: "a number", bool: "true or false"}.get(kind, "whole numbers with commas between")


def _shown(default: object) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    return "empty" if default in ("", ()) else str(default)
