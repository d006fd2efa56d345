"""The real SmolLM2 tokenizer, card and template as files, as the engine exports them."""

from pathlib import Path

import msgspec

from engine.model.export import export_model, write_card
from engine.wire import DEFAULT_MODEL, ModelCard


def write_export(folder: Path, *, max_model_len: int = 2048) -> ModelCard:
    """Write `tokenizer.json` and `model.json`; the context is cut so that tests fill it quickly."""
    card = msgspec.structs.replace(export_model(DEFAULT_MODEL, folder), max_model_len=max_model_len, num_pages=512)
    write_card(folder, card)
    return card
