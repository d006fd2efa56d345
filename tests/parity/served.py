"""Asking a served tiny model, one by one or all at once."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np

from tests.appliance import Appliance

VOCAB_SIZE = 49_152
OUTPUT_TOKENS = 48
LENGTHS = (1, 2, 15, 16, 17, 31, 33, 48, 63, 64, 65, 100, 129, 300, 511, 600)
"""Around pages of 16 tokens and chunks of 16, 64 and 512: a batch of 16."""


def prompt_of(length: int) -> list[int]:
    """Token ids; all prompts differ from the first token on."""
    return np.random.RandomState(length).randint(0, VOCAB_SIZE, length).tolist()


PROMPTS = [prompt_of(length) for length in LENGTHS]


@dataclass(frozen=True, slots=True)
class Answer:
    request_id: str
    text: str
    completion_tokens: int
    cached_tokens: int


def greedy(prompt: list[int]) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": OUTPUT_TOKENS, "ignore_eos": True, "temperature": 0}


def seeded(prompt: list[int]) -> dict[str, Any]:
    """Each prompt has its own seed and its own filters."""
    number = len(prompt)
    filters = ({}, {"top_p": 0.9}, {"top_k": 40}, {"min_p": 0.02, "presence_penalty": 0.5})[number % 4]
    return {**greedy(prompt), "temperature": 0.9, "seed": number, **filters}


def ask_alone(appliance: Appliance, bodies: Sequence[dict[str, Any]]) -> list[Answer]:
    """One after the other."""
    with httpx.Client(base_url=appliance.base_url, headers=appliance.headers, timeout=120) as client:
        return [_answer(client.post("/v1/completions", json=body)) for body in bodies]


def ask_together(appliance: Appliance, bodies: Sequence[dict[str, Any]]) -> list[Answer]:
    """All in flight at once."""

    async def ask() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=appliance.base_url, headers=appliance.headers, timeout=240) as client:
            return await asyncio.gather(*(client.post("/v1/completions", json=body) for body in bodies))

    return [_answer(response) for response in asyncio.run(ask())]


def _answer(response: httpx.Response) -> Answer:
    assert response.status_code == 200, response.text
    body = response.json()
    usage = body["usage"]
    return Answer(body["id"], body["choices"][0]["text"], usage["completion_tokens"], usage["prompt_tokens_details"]["cached_tokens"])


def texts(answers: Sequence[Answer]) -> list[str]:
    return [answer.text for answer in answers]
