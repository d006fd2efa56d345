"""Response bodies, field for field as OpenAI documents them."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType


class PromptTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int
    """Prompt tokens the prefix cache had."""


class Timing(msgspec.Struct, frozen=True):
    """Where the time of a request went, in milliseconds."""

    queue_ms: float
    """From receipt to the first prefill chunk."""
    prefill_ms: float
    """To the first token."""
    decode_ms: float
    """To the last token."""


class Usage(msgspec.Struct, frozen=True):
    """Tokens of a request: each prompt counts once, each output by its own."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    timing: Timing | UnsetType = UNSET
    """With a stream's usage; a whole answer has it as header `x-fairlane-timing`."""


# ---- /v1/completions


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """One entry a token; None for the first token of an echoed prompt."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, frozen=True):
    text: str
    index: int
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    finish_detail: str | UnsetType = UNSET
    """Ours, where the output has ended: `ends.FinishDetail`."""


class CompletionAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer, and each event of a stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
    system_fingerprint: str


# ---- /v1/chat/completions


class TopChatLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopChatLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    content: list[ChatLogprob]
    refusal: None = None


class ChatAnswerMessage(msgspec.Struct, frozen=True):
    content: str
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class ChatChoice(msgspec.Struct, frozen=True):
    index: int
    message: ChatAnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    finish_detail: str | UnsetType = UNSET
    """Ours, where the output has ended: `ends.FinishDetail`."""


class ChatAnswer(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str
    service_tier: str | UnsetType = UNSET
    """Where the request names one: what it was served as."""


class ChatDelta(msgspec.Struct, frozen=True):
    role: str | UnsetType = UNSET
    """With an output's first event."""
    content: str | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    finish_detail: str | UnsetType = UNSET
    """Ours, where the output has ended: `ends.FinishDetail`."""


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    system_fingerprint: str
    service_tier: str | UnsetType = UNSET
    """As in `ChatAnswer`."""


# ---- /generate, /tokenize, /v1/models


class GenerateAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer; several outputs come as a list."""

    id: str
    model: str
    text: str | list[str]
    finish_reason: str | list[str]
    finish_detail: str | list[str]
    usage: Usage


class GenerateChunk(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a stream: the text an output gained."""

    index: int
    text: str
    finish_reason: str | None
    finish_detail: str | UnsetType = UNSET


class TokenizeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    count: int
    max_model_len: int
    tokens: tuple[int, ...]
    token_strs: list[str] | None


class ModelAnswer(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["model"] = "model"
    created: int
    """When it was loaded, Unix seconds."""
    owned_by: str = "fairlane"
    max_model_len: int


class ModelListAnswer(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[ModelAnswer]
