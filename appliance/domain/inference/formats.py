"""Outputs as the bytes of each route: a whole answer, and the server-sent events of a stream."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from appliance.domain.inference import answers as a
from appliance.domain.inference.choice import Choice, Delta, ScoredToken
from appliance.problems import ErrorBody
from appliance.telemetry.split import Split
from appliance.text.tokenizer import Tokenizer

DONE_EVENT = b"data: [DONE]\n\n"

_encoder = msgspec.json.Encoder()


def data_event(content: object) -> bytes:
    """One server-sent event. JSON has no raw line breaks, so one `data:` line is enough."""
    return b"data: " + _encoder.encode(content) + b"\n\n"


def error_event(body: ErrorBody) -> bytes:
    """How a stream says that it failed on its way."""
    return b"event: error\ndata: " + _encoder.encode(body) + b"\n\n"


def timing_of(split: Split) -> a.Timing:
    """Where the time went, for a usage block."""
    return a.Timing(*(round(seconds * 1000, 1) for seconds in (split.queue_s, split.prefill_s, split.decode_s)))


def usage_of(choices: Sequence[Choice], n: int, timing: a.Timing | msgspec.UnsetType = msgspec.UNSET) -> a.Usage:
    """Tokens of all outputs; each prompt, which has `n` outputs, counts once."""
    firsts = choices[::n]
    prompt_tokens = sum(len(choice.prompt.token_ids) for choice in firsts)
    completion_tokens = sum(choice.num_tokens for choice in choices)
    cached = a.PromptTokensDetails(sum(choice.cached_tokens for choice in firsts))
    return a.Usage(prompt_tokens, completion_tokens, prompt_tokens + completion_tokens, cached, timing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What every body of a request begins with."""

    body_id: str
    created_s: int
    model: str
    fingerprint: str
    service_tier: str | msgspec.UnsetType = msgspec.UNSET
    """Where the request names one; chat answers tell what it was served as."""


class Format(Protocol):
    """A route's way to write outputs."""

    def event(self, choice: Choice, delta: Delta) -> bytes:
        """What an output gained, as an event."""
        ...

    def closing(self, usage: a.Usage) -> bytes:
        """The events after the last output's end."""
        ...

    def body(self, outputs: Sequence[tuple[Choice, Delta]], usage: a.Usage) -> bytes:
        """The whole answer."""
        ...


class CompletionFormat:
    """POST /v1/completions."""

    def __init__(self, head: Head, tokenizer: Tokenizer, *, include_usage: bool, scores: bool) -> None:
        self._head = head
        self._tokenizer = tokenizer
        self._include_usage = include_usage
        self._scores = scores

    def event(self, choice: Choice, delta: Delta) -> bytes:
        return data_event(self._answer([self._choice(choice, delta)], None if self._include_usage else msgspec.UNSET))

    def closing(self, usage: a.Usage) -> bytes:
        return (data_event(self._answer([], usage)) if self._include_usage else b"") + DONE_EVENT

    def body(self, outputs: Sequence[tuple[Choice, Delta]], usage: a.Usage) -> bytes:
        return _encoder.encode(self._answer([self._choice(*output) for output in outputs], usage))

    def _answer(self, choices: list[a.CompletionChoice], usage: a.Usage | msgspec.UnsetType | None) -> a.CompletionAnswer:
        head = self._head
        return a.CompletionAnswer(
            id=head.body_id, created=head.created_s, model=head.model, choices=choices, usage=usage, system_fingerprint=head.fingerprint
        )

    def _choice(self, choice: Choice, delta: Delta) -> a.CompletionChoice:
        scores = self._logprobs(delta.scored) if self._scores else None
        return a.CompletionChoice(delta.text, choice.index, scores, delta.finish_reason, delta.finish_detail or msgspec.UNSET)

    def _logprobs(self, scored: Sequence[ScoredToken]) -> a.CompletionLogprobs:
        text_of = self._tokenizer.token_text
        return a.CompletionLogprobs(
            [text_of(token.token_id) for token in scored],
            [None if token.score is None else token.score.logprob for token in scored],
            [self._top(token) for token in scored],
            [token.text_offset for token in scored],
        )

    def _top(self, token: ScoredToken) -> dict[str, float] | None:
        """The likeliest tokens, and the one that was taken. Those that read alike keep the likeliest's number."""
        if token.score is None:
            return None
        text_of = self._tokenizer.token_text
        top = {text_of(other.token_id): other.logprob for other in reversed(token.score.top)}
        return top | {text_of(token.token_id): token.score.logprob}


class ChatFormat:
    """POST /v1/chat/completions."""

    def __init__(self, head: Head, tokenizer: Tokenizer, *, include_usage: bool, scores: bool) -> None:
        self._head = head
        self._tokenizer = tokenizer
        self._include_usage = include_usage
        self._scores = scores
        self._begun: set[int] = set()

    def event(self, choice: Choice, delta: Delta) -> bytes:
        is_first = choice.index not in self._begun
        self._begun.add(choice.index)
        has_content = is_first or delta.text or delta.finish_reason is None
        gained = a.ChatDelta("assistant" if is_first else msgspec.UNSET, delta.text if has_content else msgspec.UNSET)
        detail = delta.finish_detail or msgspec.UNSET
        chunk_choice = a.ChatChunkChoice(choice.index, gained, self._logprobs(delta.scored), delta.finish_reason, detail)
        return data_event(self._chunk([chunk_choice], None if self._include_usage else msgspec.UNSET))

    def closing(self, usage: a.Usage) -> bytes:
        return (data_event(self._chunk([], usage)) if self._include_usage else b"") + DONE_EVENT

    def body(self, outputs: Sequence[tuple[Choice, Delta]], usage: a.Usage) -> bytes:
        head = self._head
        choices = [
            a.ChatChoice(
                choice.index,
                a.ChatAnswerMessage(delta.text),
                self._logprobs(delta.scored),
                delta.finish_reason,
                delta.finish_detail or msgspec.UNSET,
            )
            for choice, delta in outputs
        ]
        return _encoder.encode(
            a.ChatAnswer(
                id=head.body_id,
                created=head.created_s,
                model=head.model,
                choices=choices,
                usage=usage,
                system_fingerprint=head.fingerprint,
                service_tier=head.service_tier,
            )
        )

    def _chunk(self, choices: list[a.ChatChunkChoice], usage: a.Usage | msgspec.UnsetType | None) -> a.ChatChunk:
        head = self._head
        return a.ChatChunk(
            id=head.body_id,
            created=head.created_s,
            model=head.model,
            choices=choices,
            usage=usage,
            system_fingerprint=head.fingerprint,
            service_tier=head.service_tier,
        )

    def _logprobs(self, scored: Sequence[ScoredToken]) -> a.ChatLogprobs | None:
        if not self._scores:
            return None
        return a.ChatLogprobs([self._scored(token) for token in scored])

    def _scored(self, token: ScoredToken) -> a.ChatLogprob:
        assert token.score is not None, "chat never echoes its prompt"
        text_of = self._tokenizer.token_text
        top = [a.TopChatLogprob(text_of(other.token_id), other.logprob, self._bytes(other.token_id)) for other in token.score.top]
        return a.ChatLogprob(text_of(token.token_id), token.score.logprob, self._bytes(token.token_id), top)

    def _bytes(self, token_id: int) -> list[int]:
        return list(self._tokenizer.token_bytes[token_id] or self._tokenizer.token_text(token_id).encode())


class GenerateFormat:
    """POST /generate."""

    def __init__(self, head: Head) -> None:
        self._head = head

    def event(self, choice: Choice, delta: Delta) -> bytes:
        detail = delta.finish_detail or msgspec.UNSET
        return data_event(a.GenerateChunk(index=choice.index, text=delta.text, finish_reason=delta.finish_reason, finish_detail=detail))

    def closing(self, usage: a.Usage) -> bytes:
        return DONE_EVENT

    def body(self, outputs: Sequence[tuple[Choice, Delta]], usage: a.Usage) -> bytes:
        texts = [delta.text for _, delta in outputs]
        reasons = [delta.finish_reason or "" for _, delta in outputs]
        details: list[str] = [delta.finish_detail or "" for _, delta in outputs]
        text, reason, detail = (texts[0], reasons[0], details[0]) if len(outputs) == 1 else (texts, reasons, details)
        head = self._head
        answer = a.GenerateAnswer(id=head.body_id, model=head.model, text=text, finish_reason=reason, finish_detail=detail, usage=usage)
        return _encoder.encode(answer)
