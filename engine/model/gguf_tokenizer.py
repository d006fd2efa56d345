"""A GGUF file's byte-level BPE rebuilt as a `tokenizers.Tokenizer`.

The file names its pre-tokenizer (`tokenizer.ggml.pre`); what each name means is defined by llama.cpp's
`llama-vocab.cpp` and by the original models' tokenizer.json, which agree.
"""

from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from engine.errors import ModelError
from engine.model.gguf_file import GgufFile

_CONTROL, _USER_DEFINED = 3, 4

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""Split pattern of GPT-4's descendants; they differ in how many digits stay together."""


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), behavior="isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


def _pre_tokenizer(name: str) -> pre_tokenizers.PreTokenizer | None:
    match name:
        case "smollm":
            return pre_tokenizers.Sequence(
                [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
            )
        case "gpt-2":
            return pre_tokenizers.ByteLevel(add_prefix_space=False)
        case "llama-bpe":
            return _split(_WORDS.format(digits=r"\p{N}{1,3}"))
        case "qwen2":
            return _split(_WORDS.format(digits=r"\p{N}"))
        case _:
            return None


def tokenizer_from_gguf(file: GgufFile) -> Tokenizer:
    """ModelError if the file's tokenizer is of another kind; a tokenizer.json beside the file is the way out then."""
    pre = str(file.fields.get("tokenizer.ggml.pre", ""))
    pre_tokenizer = _pre_tokenizer(pre)
    if file.fields.get("tokenizer.ggml.model") != "gpt2" or pre_tokenizer is None:
        kind = f"{file.fields.get('tokenizer.ggml.model', 'none')}/{pre or 'none'}"
        raise ModelError(
            f"{file.path}: tokenizer '{kind}' can not be rebuilt (only byte-level BPE of smollm, gpt-2, llama-bpe, qwen2);"
            f" put the original model's tokenizer.json beside the file, it is used instead"
        )
    tokens: list[str] = file.fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in file.fields["tokenizer.ggml.merges"]]
    vocabulary: Any = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre == "llama-bpe"))
    if pre == "qwen2":  # as in Qwen's tokenizer.json; llama.cpp leaves it out and differs for decomposed accents
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    kinds = file.fields.get("tokenizer.ggml.token_type", [])
    added = [(token, kind) for token, kind in zip(tokens, kinds, strict=False) if kind in (_CONTROL, _USER_DEFINED)]
    tokenizer.add_tokens([AddedToken(token, special=kind == _CONTROL, normalized=False) for token, kind in added])
    return tokenizer
