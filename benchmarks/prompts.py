"""Prompts that no prefix cache has seen: seeded, of distinct words, each about one token."""

import random
from functools import cache
from pathlib import Path

WORDS_PER_SENTENCE = 6
"""A full stop follows each: 60 words are about 70 tokens, as in written text."""


@cache
def words() -> tuple[str, ...]:
    """1,024 English words and stems that are one token (with the space before) in SmolLM2's vocabulary."""
    return tuple((Path(__file__).parent / "words.txt").read_text().split())


def prompt(rng: random.Random, num_words: int) -> str:
    """`num_words` words, all different as long as there are enough; the first 16 differ between any two prompts in practice."""
    chosen = rng.sample(words(), num_words) if num_words <= len(words()) else rng.choices(words(), k=num_words)
    return " ".join(word + "." * (n % WORDS_PER_SENTENCE == 0) for n, word in enumerate(chosen, 1))


def words_of_tokens(num_tokens: int) -> int:
    """Words that make about `num_tokens` tokens."""
    return max(1, round(num_tokens * WORDS_PER_SENTENCE / (WORDS_PER_SENTENCE + 1)))
