"""Request bodies. A field that is not declared here is refused by name; null means "not given" everywhere."""

import re
from typing import Any, Literal

import msgspec

from appliance.choices import describe
from appliance.domain.lanes.decisions import Lane, ServiceTier
from appliance.domain.slas.decisions import Task
from appliance.errors import Invalid

type PromptInput = str | list[str | int | list[int]]
"""A text, a list of texts, token ids, or a list of token id lists."""


class SamplingFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What every generating route takes."""

    model: str | None = None
    """Name of the served model; without it the one that is served."""
    stream: bool | None = None
    """Send tokens as they come, as server-sent events."""
    temperature: float | None = None
    """0 (greedy) to 2; 1 without it."""
    top_p: float | None = None
    """Above 0, at most 1."""
    top_k: int | None = None
    """Choose among the k likeliest tokens; 0 or -1 among all."""
    min_p: float | None = None
    """Drop tokens less likely than this share of the likeliest one, 0 to 1."""
    repetition_penalty: float | None = None
    """Above 0; over 1 makes tokens of prompt and output less likely."""
    presence_penalty: float | None = None
    """-2 to 2."""
    frequency_penalty: float | None = None
    """-2 to 2."""
    logit_bias: dict[str, float] | None = None
    """Token id to a number from -100 to 100 added to its logit."""
    seed: int | None = None
    """The same seed and request give the same text."""
    stop: str | list[str] | None = None
    """Up to 16 texts that end the output; they are not part of it."""
    stop_token_ids: list[int] | None = None
    """Up to 16 token ids that end the output."""
    min_tokens: int | None = None
    """No end before so many tokens."""
    ignore_eos: bool | None = None
    """Go on past the model's end token."""
    n: int | None = None
    """Outputs for each prompt."""
    service_tier: ServiceTier | None = None
    """auto and default: the tenant's tier decides; priority: interactive; flex: batch."""
    task: Task | None = None
    """What the output is for; brings the task's cap and, unless `task_stops` is false, its ends. The header `X-Task` says the same."""
    task_stops: bool | None = None
    """False: without the ends that come with the task."""
    stop_on_repetition: bool | None = None
    """End an output that loops."""
    stop_on_json: bool | None = None
    """End an output behind its first whole JSON object or array."""
    deadline_ms: int | None = None
    """Milliseconds from receipt after which an output ends with what it has; a request without a token by then is answered 503. The header
    `X-Deadline-Ms` says the same."""
    lane: Lane | None = None
    """fast, slow or batch, where tier and key allow it; without it service_tier, streaming and the prompt's length decide."""
    user: str | None = None
    """Taken and not used."""


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Options of a stream."""

    include_usage: bool | None = None
    """Send one more event with the usage."""


class CompletionRequest(SamplingFields, kw_only=True):
    """Body of POST /v1/completions."""

    prompt: PromptInput
    """What the model continues: text, texts, token ids, or lists of them."""
    max_tokens: int | None = None
    """Most tokens of an output; the task's cap without it."""
    logprobs: int | None = None
    """Log-probabilities of the output's tokens and of so many likeliest ones, 0 to 20."""
    echo: bool | None = None
    """Put the prompt in front of the output, with `logprobs` the prompt's too."""
    best_of: int | None = None
    """Only the value of `n`."""
    stream_options: StreamOptions | None = None


class TextPart(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A part of a message's content; only text is served."""

    type: Literal["text"]
    text: str


class ChatMessage(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A message. The fields that are always null are those a client copies from an answer."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    refusal: None = None
    tool_calls: None = None
    function_call: None = None
    audio: None = None
    annotations: None = None


class ResponseFormat(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Only plain text is served."""

    type: Literal["text"]


class ChatRequest(SamplingFields, kw_only=True):
    """Body of POST /v1/chat/completions."""

    messages: list[ChatMessage]
    """The conversation so far, as the model's chat template takes it."""
    max_tokens: int | None = None
    """Most tokens of an output; the task's cap without it."""
    max_completion_tokens: int | None = None
    """The newer name of max_tokens."""
    logprobs: bool | None = None
    """Log-probabilities of the output's tokens."""
    top_logprobs: int | None = None
    """And of so many likeliest ones, 0 to 20; needs logprobs."""
    response_format: ResponseFormat | None = None
    stream_options: StreamOptions | None = None


class GenerateRequest(SamplingFields, kw_only=True):
    """Body of POST /generate: the shortest way to text."""

    prompt: str
    """What the model continues."""
    max_tokens: int | None = None
    """Most tokens of the output; the task's cap without it."""


class TokenizeRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /tokenize: a prompt, or messages as the chat route takes them."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    return_token_strs: bool | None = None
    """Each token as text, too."""


MAX_NAME_CHARS = 200
"""Of a name that the client made up: a message repeats no more of it."""
MAX_MESSAGE_CHARS = 300

_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*?)`", re.DOTALL)
_MISSING_FIELD = re.compile(r"Object missing required field `(.*?)`")


def decode_request[Body: msgspec.Struct](raw: bytes, body_type: type[Body]) -> Body:
    """A body as its struct.

    Raises:
        Invalid: it is no JSON, or not of this shape; `param` names the field.
    """
    try:
        return msgspec.json.decode(raw, type=body_type)
    except msgspec.ValidationError as error:
        raise _explain(str(error), body_type) from error
    except msgspec.DecodeError as error:
        raise Invalid(f"the body is not valid JSON: {error}", code="malformed_json") from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"the body can not be read as JSON: {error}", code="malformed_json") from error


def _explain(message: str, body_type: type[msgspec.Struct]) -> Invalid:
    """msgspec's words, with the field's name apart and, for an unknown one, what there is instead."""
    text, path = describe(message, body_type)
    if unknown := _UNKNOWN_FIELD.match(text):
        param = f"{path}.{unknown.group(1)}".lstrip(".")[:MAX_NAME_CHARS]
        supported = "" if path else f"; supported: {', '.join(sorted(body_type.__struct_fields__))}"
        return Invalid(f"parameter {param!r} is not supported here{supported}", param=param, code="unsupported_parameter")
    if missing := _MISSING_FIELD.match(text):
        param = f"{path}.{missing.group(1)}".lstrip(".")
        return Invalid(f"parameter {param!r} is missing", param=param, code="missing_parameter")
    if not path:
        return Invalid(f"the body must be a JSON object: {text}", code="invalid_type")
    return Invalid(f"{path}: {text[:MAX_MESSAGE_CHARS]}", param=path, code="invalid_type")


def template_messages(messages: list[ChatMessage]) -> list[dict[str, Any]]:
    """Messages as templates take them: content as one text, OpenAI's developer role under its older name."""
    return [
        {"role": "system" if message.role == "developer" else message.role, "content": _plain(message.content)}
        | ({"name": message.name} if message.name else {})
        | ({"tool_call_id": message.tool_call_id} if message.tool_call_id else {})
        for message in messages
    ]


def _plain(content: str | list[TextPart] | None) -> str:
    if isinstance(content, list):
        return "\n".join(part.text for part in content)
    return content or ""
