"""What the control plane needs of a model, written where it can read it: `tokenizer.json` and `model.json`.

The control plane imports neither jax nor numpy and opens no checkpoint: it reads this folder and nothing else.
"""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
from tokenizers import Tokenizer

from engine.errors import ModelError
from engine.model.config import ModelConfig
from engine.model.gguf_tokenizer import tokenizer_from_gguf
from engine.model.hf_config import read_json
from engine.model.kv_size import kv_bytes_per_token
from engine.model.memory import weight_bytes
from engine.model.source import FolderSource, GgufSource, ModelSource, open_source
from engine.wire import DEFAULT_MODEL, ModelCard

CARD_NAME = "model.json"
TOKENIZER_NAME = "tokenizer.json"

_SPECIAL_KEYS = ("bos_token", "eos_token", "pad_token", "unk_token")


@dataclass(frozen=True, slots=True)
class Text:
    """A model's side of text: its tokenizer (a file to copy, or rebuilt) and what templates need."""

    tokenizer: Tokenizer | Path
    chat_template: str | None
    special_tokens: dict[str, str]
    add_bos: bool


def export_model(
    source: str | ModelSource,
    export_dir: Path,
    *,
    served_model_name: str = "",
    load_format: Literal["auto", "dummy"] = "auto",
    dtype: str = "bfloat16",
    quantization: str = "none",
    kv_dtype: str = "bfloat16",
    max_model_len: int = 0,
    block_size: int = 16,
    num_pages: int = 0,
) -> ModelCard:
    """Write both files, `model.json` last, each in one move; returns what `model.json` says.

    `max_model_len` 0 takes the model's context. `num_pages` is 0 while the pool's size is not known yet.

    Raises:
        ModelError: no tokenizer, or one that does not belong to the model.
    """
    opened = open_source(source) if isinstance(source, str) else source
    config = opened.config
    text = _read_text(opened, load_format)
    export_dir.mkdir(parents=True, exist_ok=True)
    _write_tokenizer(text.tokenizer, config, export_dir / TOKENIZER_NAME)
    card = ModelCard(
        model_id=served_model_name or config.name,
        architecture=config.architecture,
        vocab_size=config.vocab_size,
        max_model_len=max_model_len or config.max_position,
        bos_token_id=config.bos_token_id,
        eos_token_ids=config.eos_token_ids,
        add_bos=text.add_bos,
        chat_template=text.chat_template,
        special_tokens=text.special_tokens,
        dtype=dtype,
        quantization=quantization,
        weight_bytes=weight_bytes(opened, dtype=dtype, quantization=quantization),
        kv_bytes_per_token=kv_bytes_per_token(config, kv_dtype),
        block_size=block_size,
        num_pages=num_pages,
    )
    write_card(export_dir, card)
    return card


def write_card(export_dir: Path, card: ModelCard) -> None:
    """Write `model.json` alone, once more is known (the pool's pages)."""
    scratch = export_dir / (CARD_NAME + ".new")
    scratch.write_bytes(msgspec.json.format(msgspec.json.encode(card)))
    os.replace(scratch, export_dir / CARD_NAME)


def _read_text(source: ModelSource, load_format: str) -> Text:
    if isinstance(source, GgufSource):
        return _gguf_text(source)
    if load_format == "dummy" and not (source.path / TOKENIZER_NAME).is_file():
        return _gguf_text_of_default()  # random weights say nothing sensible in any tokenizer
    return _folder_text(source)


def _gguf_text_of_default() -> Text:
    default = open_source(DEFAULT_MODEL)
    assert isinstance(default, GgufSource)
    return _gguf_text(default)


def _gguf_text(source: GgufSource) -> Text:
    fields = source.file.fields
    tokens: list[str] = fields.get("tokenizer.ggml.tokens", [])
    ids = {
        "bos_token": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token": fields.get("tokenizer.ggml.eos_token_id"),
        "pad_token": fields.get("tokenizer.ggml.padding_token_id"),
        "unk_token": fields.get("tokenizer.ggml.unknown_token_id"),
    }
    beside = source.path.with_name(TOKENIZER_NAME)
    return Text(
        tokenizer=beside if beside.is_file() else tokenizer_from_gguf(source.file),
        chat_template=fields.get("tokenizer.chat_template"),
        special_tokens={key: tokens[token_id] for key, token_id in ids.items() if token_id is not None and token_id < len(tokens)},
        add_bos=bool(fields.get("tokenizer.ggml.add_bos_token", False)),
    )


def _folder_text(source: FolderSource) -> Text:
    path = source.path / TOKENIZER_NAME
    if not path.is_file():
        raise ModelError(
            f"{path} is missing; download it, or make it from tokenizer.model with transformers:"
            " AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        )
    settings_path = source.path / "tokenizer_config.json"
    settings = read_json(settings_path) if settings_path.is_file() else {}
    special = {key: token for key in _SPECIAL_KEYS if (token := _token_text(settings.get(key)))}
    return Text(path, _chat_template(source.path, settings), special, _puts_bos_first(path, source.config))


def _chat_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """A file of its own wins over the setting; of several named templates, the default."""
    own_file = folder / "chat_template.jinja"
    if own_file.is_file():
        return own_file.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):
        return next((entry["template"] for entry in template if entry.get("name") == "default"), None)
    return template


def _token_text(token: Any) -> str | None:
    return token.get("content") if isinstance(token, dict) else token


def _puts_bos_first(path: Path, config: ModelConfig) -> bool:
    """Whether the tokenizer's own post-processing starts a bare prompt with the bos token."""
    return config.bos_token_id is not None and _load_tokenizer(path).encode("a").ids[:1] == [config.bos_token_id]


def _load_tokenizer(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise ModelError(f"{path} is not a tokenizer that the tokenizers library reads: {error}") from error


def _write_tokenizer(tokenizer: Tokenizer | Path, config: ModelConfig, target: Path) -> None:
    """ModelError when a token id could lie outside the model's vocabulary."""
    loaded = _load_tokenizer(tokenizer) if isinstance(tokenizer, Path) else tokenizer
    highest = max(loaded.get_vocab(with_added_tokens=True).values(), default=-1)
    if highest >= config.vocab_size:
        raise ModelError(
            f"the tokenizer of {config.name} has token ids up to {highest}, the model's vocabulary ends at {config.vocab_size - 1}:"
            " they do not belong together"
        )
    scratch = target.with_name(target.name + ".new")
    if isinstance(tokenizer, Path):
        shutil.copyfile(tokenizer, scratch)
    else:
        tokenizer.save(str(scratch), pretty=False)
    os.replace(scratch, target)
