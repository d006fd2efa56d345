"""`fairlane model` and `fairlane simulate`: questions only the engine's code can answer, asked in a subprocess (`python -m engine ...`)."""

import subprocess
import sys

import click

PASS_ON = {"ignore_unknown_options": True}
ENGINE_USAGE_EXIT = 2


@click.group()
def model() -> None:
    """Models: what one needs, fetching and preparing one."""


@model.command("info", context_settings=PASS_ON)
@click.argument("arguments", metavar="[MODEL] [OPTIONS]", nargs=-1, type=click.UNPROCESSED)
def info(arguments: tuple[str, ...]) -> None:
    """Say what MODEL weighs, what a token of context costs, and how many sequences fit which card.

    MODEL is `smollm2-135m-instruct` (the default), a .gguf file or a Hugging Face folder; nothing is loaded.

    \b
    --dtype bfloat16|float32
    --quantization none|int8|gguf
    --kv-cache-dtype bfloat16|float32|int8|fp8
    """
    _ask_engine("info", arguments)


@model.command("prepare", context_settings=PASS_ON)
@click.argument("arguments", metavar="[MODEL] --out FOLDER", nargs=-1, type=click.UNPROCESSED)
def prepare(arguments: tuple[str, ...]) -> None:
    """Write what the control plane reads of MODEL, tokenizer.json and model.json, to a folder."""
    _ask_engine("prepare", arguments)


@model.command("pull", context_settings={**PASS_ON, "help_option_names": []})
@click.argument("arguments", metavar="NAME [OPTIONS]", nargs=-1, type=click.UNPROCESSED)
def pull(arguments: tuple[str, ...]) -> None:
    """Fetch NAME, as Qwen/Qwen3-0.6B, from the Hugging Face hub (serving never downloads). HF_TOKEN opens what is not public."""
    _ask_engine("pull", arguments, module="engine.model.pull")


@click.command("simulate", context_settings={**PASS_ON, "help_option_names": []})
@click.argument("arguments", metavar="TRACE [OPTIONS]", nargs=-1, type=click.UNPROCESSED)
def simulate(arguments: tuple[str, ...]) -> None:
    """Replay TRACE on the scheduler under a virtual clock: tails, attainment and fairness by tenant; how many more users fit."""
    _ask_engine("simulate", arguments, module="engine.simulation")


def _ask_engine(command: str, arguments: tuple[str, ...], module: str = "") -> None:
    """Run an engine command, or a program of the engine's own, on this terminal; its usage errors stay 2, all else that fails is 1."""
    program = [module] if module else ["engine", command]
    code = subprocess.run([sys.executable, "-m", *program, *arguments], check=False).returncode
    if code:
        raise SystemExit(ENGINE_USAGE_EXIT if code == ENGINE_USAGE_EXIT else 1)
