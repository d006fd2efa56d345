"""The engine's settings that a simulation takes: all those that the scheduler reads, as flags made from `EngineConfig`."""

from collections.abc import Callable
from typing import Any

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
        is_switch = field.type is bool
        command = click.option(f"{flag}/--no-{flag[2:]}" if is_switch else flag, field.name, default=None, help=shown)(command)
    return command


def config_of(flags: dict[str, Any]) -> EngineConfig:
    """The configuration of those flags.

    Raises:
        click.UsageError: a value of the wrong kind.
        ConfigError: a value out of its bounds.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    for field in msgspec.structs.fields(EngineConfig):
        if field.name in given and field.name.endswith("_buckets"):
            given[field.name] = [part for part in str(given[field.name]).split(",") if part]
    try:
        config = msgspec.convert(given, EngineConfig, strict=False)
    except msgspec.ValidationError as error:
        reason, _, where = str(error).partition(" - at `$.")
        raise click.UsageError(f"--{where.rstrip('`').partition('[')[0].replace('_', '-')}: {reason[:1].lower()}{reason[1:]}") from error
    check_config(config)
    return config


def _shown(default: object) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    return "empty" if default in ("", ()) else str(default)
