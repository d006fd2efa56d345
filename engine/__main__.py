"""`python -m engine run|prepare|info`: what the control plane and its command line start as subprocesses.

Exit codes: 0 done, 2 usage, 3 a setting or the model is at fault (do not restart), 1 anything else.
"""

import os
import socket
import sys
import time
from pathlib import Path

import click
import msgspec

from engine.errors import ConfigError, ModelError
from engine.link import Link
from engine.model.export import export_model
from engine.model.info import describe_model
from engine.needs import needs_of
from engine.server import serve
from engine.wire import DEFAULT_MODEL, EngineConfig

EXIT_AT_FAULT = 3
"""A restart would fail the same way."""


@click.group()
def main() -> None:
    """Fairlane's engine. People use `fairlane` instead."""


@main.command()
@click.option("--fd", type=int, required=True, help="Inherited stream socket to the control plane.")
@click.option("--config-json", required=True, help="EngineConfig as JSON.")
def run(fd: int, config_json: str) -> None:
    """Serve one replica until the connection ends."""
    config = msgspec.json.decode(config_json, type=EngineConfig)
    if config.nice:
        os.nice(config.nice)
    with socket.socket(fileno=fd) as sock:
        sys.exit(EXIT_AT_FAULT if serve(config, Link(sock), time.monotonic_ns, os.environ) == "at_fault" else 0)


@main.command()
@click.argument("model", default=DEFAULT_MODEL)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="Folder to write to.")
def prepare(model: str, out: Path) -> None:
    """Write tokenizer.json and model.json of MODEL, all that the control plane reads of it."""
    card = export_model(model, out)
    click.echo(f"{card.model_id}: tokenizer.json and model.json written to {out}")


@main.command()
@click.argument("model", default=DEFAULT_MODEL)
@click.option("--dtype", default="bfloat16", show_default=True, type=click.Choice(["bfloat16", "float32"]), help="Type of the weights.")
@click.option("--quantization", default="none", show_default=True, type=click.Choice(["none", "int8", "gguf"]))
@click.option("--kv-cache-dtype", default="bfloat16", show_default=True, type=click.Choice(["bfloat16", "float32", "int8", "fp8"]))
def info(model: str, dtype: str, quantization: str, kv_cache_dtype: str) -> None:
    """Say what MODEL weighs, what a token of context costs, and how many sequences fit which card."""
    click.echo(
        describe_model(
            model, dtype=dtype, quantization=quantization, kv_dtype="float8_e4m3fn" if kv_cache_dtype == "fp8" else kv_cache_dtype
        )
    )


@main.command()
@click.option("--config-json", required=True, help="EngineConfig as JSON.")
def needs(config_json: str) -> None:
    """Say as JSON (`ModelNeeds`) what a configuration takes of this machine."""
    click.echo(msgspec.json.encode(needs_of(msgspec.json.decode(config_json, type=EngineConfig))))


if __name__ == "__main__":
    try:
        main()
    except (ConfigError, ModelError) as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(EXIT_AT_FAULT)
