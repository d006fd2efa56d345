"""SmolLM2's tokenizer a second time, slow and plain, as llama.cpp defines the pre-tokenizer `smollm`: a reference.

transformers rebuilds every GGUF of a Llama with Llama 3's split pattern (up to three digits together), which is not
what this model was trained with, so it can not serve as one. Shares no code with the engine. Its ids for the committed texts
and for 3,000 random strings over their characters were compared once with libllama 0.6.0 itself: all the same.
"""

from itertools import pairwise

import regex

DIGIT = regex.compile(r"\p{N}")
GPT2_WORD = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")


def byte_alphabet() -> list[str]:
    """GPT-2's printable stand-in of each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(256 + others.index(byte)) for byte in range(256)]


class ReferenceBpe:
    """Byte-level BPE over vocabulary, merges and special tokens."""

    def __init__(self, tokens: list[str], merges: list[str], special: list[str]) -> None:
        self.ids = {token: index for index, token in enumerate(tokens)}
        self.ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
        self.special = regex.compile("(" + "|".join(regex.escape(token) for token in sorted(special, key=len, reverse=True)) + ")")
        self.special_tokens = set(special)
        self.alphabet = byte_alphabet()

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for part in self.special.split(text):
            if part in self.special_tokens:
                ids.append(self.ids[part])
                continue
            for piece in split_keeping(DIGIT, part):
                for word in GPT2_WORD.findall(piece):
                    ids += [self.ids[token] for token in self._merge([self.alphabet[byte] for byte in word.encode()])]
        return ids

    def _merge(self, symbols: list[str]) -> list[str]:
        """Merge the pair of the lowest rank, everywhere it stands, until none is left."""
        while len(symbols) > 1:
            pairs = list(pairwise(symbols))
            best = min(pairs, key=lambda pair: self.ranks.get(pair, len(self.ranks)))
            if best not in self.ranks:
                break
            merged: list[str] = []
            index = 0
            while index < len(symbols):
                if tuple(symbols[index : index + 2]) == best:
                    merged.append(symbols[index] + symbols[index + 1])
                    index += 2
                else:
                    merged.append(symbols[index])
                    index += 1
            symbols = merged
        return symbols


def split_keeping(pattern: regex.Pattern, text: str) -> list[str]:
    """Split so that each match is a piece of its own."""
    pieces, end = [], 0
    for match in pattern.finditer(text):
        pieces += [text[end : match.start()], match.group()]
        end = match.end()
    return [piece for piece in [*pieces, text[end:]] if piece]
