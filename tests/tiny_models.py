"""Tiny random models as Hugging Face folders: one a family, and one with SmolLM2's tokenizer that can be served."""

import json
from pathlib import Path
from typing import Any

from engine.model.export import TOKENIZER_NAME, export_model
from engine.wire import DEFAULT_MODEL
from tests.tiny_weights import tiny_config, write_tiny_weights

SERVABLE_VOCAB_SIZE = 49_152
SERVABLE_MAX_POSITION = 4_096


def write_family_model(folder: Path, family: str, *, seed: int = 0, shards: int = 1, **changes: Any) -> Path:
    """A model with a vocabulary of 512 and no tokenizer; `changes` override keys of config.json."""
    write_tiny_weights(folder, tiny_config(family, **changes), seed, shards)
    return folder


def write_servable_model(folder: Path, *, family: str = "llama3", seed: int = 0, **changes: Any) -> Path:
    """A model of two layers of width 64 with SmolLM2's tokenizer and chat template; a server starts with it in seconds."""
    sizes = {"vocab_size": SERVABLE_VOCAB_SIZE, "max_position_embeddings": SERVABLE_MAX_POSITION, "tie_word_embeddings": True}
    write_tiny_weights(folder, tiny_config(family, **{**sizes, **changes}), seed)
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    """SmolLM2's tokenizer.json and a tokenizer_config.json with its chat template."""
    card = export_model(DEFAULT_MODEL, folder / "smollm2")
    (folder / "smollm2" / TOKENIZER_NAME).rename(folder / TOKENIZER_NAME)
    settings = {"chat_template": card.chat_template, **card.special_tokens}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "smollm2" / "model.json").unlink()
    (folder / "smollm2").rmdir()
