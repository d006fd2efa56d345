"""Loads the reference numbers of `tests/fixtures/reference`, made by `python -m benchmarks.reference.make_reference`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent / "fixtures" / "reference"


@dataclass(frozen=True, slots=True)
class LogitRow:
    """Hugging Face's f32 logits at one position, for some entries of the vocabulary."""

    position: int
    token_ids: np.ndarray
    logits: np.ndarray


@dataclass(frozen=True, slots=True)
class LogitCase:
    prompt_ids: tuple[int, ...]
    rows: tuple[LogitRow, ...]


@dataclass(frozen=True, slots=True)
class GreedyCase:
    """Greedy continuation, end tokens ignored."""

    prompt: str
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TextCase:
    """A text of 2,000 tokens: `nll[i]` is that of token i + 1, `argmax[i]` the most likely token after token i."""

    token_ids: tuple[int, ...]
    nll: np.ndarray
    argmax: np.ndarray


@dataclass(frozen=True, slots=True)
class TinyCase:
    """A tiny model of one family: `tests.tiny_weights` makes it from `seed`."""

    family: str
    seed: int
    logits: LogitCase
    output_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TokenizerCase:
    text: str
    token_ids: list[int]


@cache
def _read(name: str) -> dict[str, Any]:
    return json.loads((FOLDER / name).read_text())


def _logit_case(prompt_ids: Sequence[int], rows: Sequence[dict[str, Any]]) -> LogitCase:
    return LogitCase(
        tuple(prompt_ids), tuple(LogitRow(row["position"], np.array(row["token_ids"]), np.array(row["logits"])) for row in rows)
    )


def smollm2_logits() -> list[LogitCase]:
    """Prompts of 1, 15, 16, 17, 300 and 2,000 tokens."""
    return [_logit_case(case["prompt_ids"], case["rows"]) for case in _read("smollm2.json")["logits"]]


def smollm2_greedy() -> list[GreedyCase]:
    """Twenty prompts, 64 tokens each."""
    cases = _read("smollm2.json")["greedy"]
    return [GreedyCase(case["prompt"], tuple(case["prompt_ids"]), tuple(case["output_ids"])) for case in cases]


def smollm2_text() -> TextCase:
    text = _read("smollm2.json")["text"]
    return TextCase(tuple(text["token_ids"]), np.array(text["nll"]), np.array(text["argmax"]))


def tiny_cases() -> list[TinyCase]:
    families = _read("tiny.json")["families"]
    return [
        TinyCase(family, case["seed"], _logit_case(case["prompt_ids"], case["rows"]), tuple(case["output_ids"]))
        for family, case in families.items()
    ]


def tokenizer_cases() -> list[TokenizerCase]:
    return [TokenizerCase(case["text"], case["ids"]) for case in _read("tokenizer.json")["texts"]]
