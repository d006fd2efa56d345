"""From a request body to what the engine is asked for. One function a route; all refuse before anything is submitted."""

from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from appliance.domain.inference.choice import Prompt
from appliance.domain.inference.ends import Ends, ends_of_task
from appliance.domain.inference.formats import ChatFormat, CompletionFormat, Format, GenerateFormat, Head
from appliance.domain.inference.output_caps import Bound, TaskCap, output_limit
from appliance.domain.inference.parameters import (
    check_logprobs,
    check_token_ids,
    num_outputs,
    sampling_of,
    shown,
    stop_strings,
)
from appliance.domain.inference.schemas import (
    ChatMessage,
    ChatRequest,
    CompletionRequest,
    GenerateRequest,
    PromptInput,
    SamplingFields,
    StreamOptions,
    template_messages,
)
from appliance.domain.slas.decisions import Task
from appliance.errors import Invalid
from appliance.text.model import TextModel
from appliance.text.tokenizer import TextTooLong, Tokenizer
from engine.wire import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake:
    """A checked request. `samplings` has one entry a prompt: how many tokens fit depends on its length, and `bounds` says by what."""

    prompts: tuple[Prompt, ...]
    samplings: tuple[Sampling, ...]
    bounds: tuple[Bound, ...]
    outputs_per_prompt: int
    ends: Ends
    echo: bool
    scores: bool
    make_format: Callable[[Head], Format]

    @property
    def prompt_tokens(self) -> int:
        """Each prompt once, however many outputs it gets."""
        return sum(len(prompt.token_ids) for prompt in self.prompts)

    @property
    def most_tokens(self) -> int:
        """The most the request may use: its prompts, and for each output the longest it may become."""
        return self.prompt_tokens + self.outputs_per_prompt * sum(sampling.max_tokens for sampling in self.samplings)


@dataclass(frozen=True, slots=True)
class Terms:
    """What a request is read by beside its body: the model, its output cap, the task it names, the seed to use where it has none."""

    model: TextModel
    cap: TaskCap
    named_task: Task | None
    seed: int


@dataclass(frozen=True, slots=True)
class Route[Body: SamplingFields]:
    """A generating route: its body, how it is read, what its ids begin with."""

    path: str
    body_type: type[Body]
    id_prefix: str
    task: Task
    """What it is for where the request does not say."""
    read: Callable[[Body, Terms], Awaitable[Intake]]
    """Raises `Invalid`."""


def prompt_texts(intake: Intake, tokenizer: Tokenizer) -> list[str]:
    """The prompts as they were sent; conversations and token ids as the model reads them, special tokens by their names."""
    return [_text_of(prompt.token_ids, tokenizer) if prompt.text is None else prompt.text for prompt in intake.prompts]


def _text_of(token_ids: Iterable[int], tokenizer: Tokenizer) -> str:
    """Joined as bytes: a character may be spread over tokens."""
    pieces = (tokenizer.token_bytes[token_id] or tokenizer.token_text(token_id).encode() for token_id in token_ids)
    return b"".join(pieces).decode(errors="replace")


async def read_completion(body: CompletionRequest, terms: Terms) -> Intake:
    """POST /v1/completions."""
    _check_stream_options(body, body.stream_options)
    logprobs = -1 if body.logprobs is None else check_logprobs("logprobs", body.logprobs)
    n = num_outputs(body.n, _count_prompts(body.prompt))
    if body.best_of is not None and body.best_of != n:
        raise Invalid(
            f"best_of is {shown(body.best_of)}; only the value of n, {n}, is supported", param="best_of", code="unsupported_parameter"
        )
    prompts = await _read_prompts(body.prompt, terms.model)
    include_usage = bool(body.stream_options and body.stream_options.include_usage)
    echo = bool(body.echo)
    asked = _Asked("prompt", "max_tokens", body.max_tokens, logprobs, logprobs if echo else -1)
    samplings, bounds = _samplings(body, terms, prompts, asked)
    return Intake(
        prompts=prompts,
        samplings=samplings,
        bounds=bounds,
        outputs_per_prompt=n,
        ends=_ends(body, terms),
        echo=echo,
        scores=logprobs >= 0,
        make_format=lambda head: CompletionFormat(head, terms.model.tokenizer, include_usage=include_usage, scores=logprobs >= 0),
    )


async def read_chat(body: ChatRequest, terms: Terms) -> Intake:
    """POST /v1/chat/completions."""
    _check_stream_options(body, body.stream_options)
    if body.top_logprobs is not None and not body.logprobs:
        raise Invalid("top_logprobs needs logprobs: true", param="top_logprobs")
    logprobs = check_logprobs("top_logprobs", body.top_logprobs or 0) if body.logprobs else -1
    param, max_tokens = _asked_tokens(body)
    n = num_outputs(body.n, 1)
    prompts = (await read_messages(body.messages, terms.model, terms.model.card.max_model_len),)
    include_usage = bool(body.stream_options and body.stream_options.include_usage)
    samplings, bounds = _samplings(body, terms, prompts, _Asked("messages", param, max_tokens, logprobs))
    return Intake(
        prompts=prompts,
        samplings=samplings,
        bounds=bounds,
        outputs_per_prompt=n,
        ends=_ends(body, terms),
        echo=False,
        scores=logprobs >= 0,
        make_format=lambda head: ChatFormat(head, terms.model.tokenizer, include_usage=include_usage, scores=logprobs >= 0),
    )


async def read_generate(body: GenerateRequest, terms: Terms) -> Intake:
    """POST /generate."""
    n = num_outputs(body.n, 1)
    prompts = await _read_prompts(body.prompt, terms.model)
    samplings, bounds = _samplings(body, terms, prompts, _Asked("prompt", "max_tokens", body.max_tokens))
    return Intake(
        prompts=prompts,
        samplings=samplings,
        bounds=bounds,
        outputs_per_prompt=n,
        ends=_ends(body, terms),
        echo=False,
        scores=False,
        make_format=GenerateFormat,
    )


COMPLETIONS = Route("/v1/completions", CompletionRequest, "cmpl-", "other", read_completion)
CHAT = Route("/v1/chat/completions", ChatRequest, "chatcmpl-", "chat", read_chat)
GENERATE = Route("/generate", GenerateRequest, "gen-", "other", read_generate)


async def read_text(param: str, text: str, model: TextModel, most_tokens: int | None = None) -> Prompt:
    """A text as a prompt. Raises `Invalid` where it is empty, or so long that encoding it would be wasted: beyond `most_tokens`, or what
    no tokenizer packs into the context."""
    _check_text(param, text, model)
    with _told_as(param, model):
        return Prompt(await model.encode_prompt(text, most_tokens), text)


async def read_messages(messages: list[ChatMessage], model: TextModel, most_tokens: int | None = None) -> Prompt:
    """A conversation as a prompt. Raises `Invalid` as `read_text`, or where the model's template refuses it."""
    if not messages:
        raise Invalid("messages is empty: send at least one message", param="messages")
    context = model.card.max_model_len
    if len(messages) > context:  # each has a token at least, and rendering them takes long
        text = f"messages has {len(messages)} messages, which can not fit this model's context of {context} tokens"
        raise Invalid(text, param="messages", code="context_length_exceeded")
    rendered = template_messages(messages)
    _check_text_length("messages", sum(len(message["content"]) for message in rendered), model)
    with _told_as("messages", model):
        return Prompt(await model.encode_chat(rendered, most_tokens))


@contextmanager
def _told_as(param: str, model: TextModel) -> Iterator[None]:
    """What the tokenizer did not read to its end is a field's fault."""
    try:
        yield
    except TextTooLong as error:
        raise Invalid(
            f"{param} is too long: its first {error.num_chars} characters alone have {error.num_tokens} tokens; the context is"
            f" {model.card.max_model_len} tokens, prompt and output together",
            param=param,
            code="context_length_exceeded",
        ) from error


def _count_prompts(prompt: PromptInput) -> int:
    """Prompts of a request; one list of token ids is one."""
    return 1 if isinstance(prompt, str) or all(isinstance(item, int) for item in prompt) else len(prompt)


async def _read_prompts(prompt: PromptInput, model: TextModel) -> tuple[Prompt, ...]:
    """The four kinds of prompt, told apart by their first item."""
    if isinstance(prompt, str):
        return (await read_text("prompt", prompt, model, model.card.max_model_len),)
    if not prompt:
        raise Invalid("prompt is an empty list: send a text, texts, token ids, or lists of token ids", param="prompt")
    kinds = set(map(type, prompt))
    if kinds == {int}:
        return (_read_ids(cast(list[int], prompt), model),)
    if kinds == {list}:
        return tuple(_read_ids(ids, model) for ids in cast(list[list[int]], prompt))
    if kinds == {str}:
        return await _read_texts(cast(list[str], prompt), model)
    raise Invalid("prompt mixes kinds: send a text, texts, token ids, or lists of token ids", param="prompt")


async def _read_texts(texts: list[str], model: TextModel) -> tuple[Prompt, ...]:
    """In their order, and by one thread at most; many short ones are as much work as a long one."""
    for text in texts:
        _check_text("prompt", text, model)
    with _told_as("prompt", model):
        return tuple(map(Prompt, await model.encode_prompts(texts, model.card.max_model_len), texts))


def _read_ids(token_ids: list[int], model: TextModel) -> Prompt:
    if not token_ids:
        raise Invalid("prompt has an empty list of token ids: send at least one", param="prompt")
    if len(token_ids) <= model.card.max_model_len:  # else it is refused for its length, and looking at each would be wasted
        check_token_ids("prompt", token_ids, model.card.vocab_size)
    return Prompt(tuple(token_ids))


@dataclass(frozen=True, slots=True)
class _Asked:
    """What differs between the routes: where prompts and the limit came from, and whose log-probabilities are wanted (-1: none)."""

    source: str
    param: str
    max_tokens: int | None
    logprobs: int = -1
    prompt_logprobs: int = -1


def _samplings(
    body: SamplingFields, terms: Terms, prompts: tuple[Prompt, ...], asked: _Asked
) -> tuple[tuple[Sampling, ...], tuple[Bound, ...]]:
    """How each prompt's outputs are chosen, and what bounds their length; the first output uses the seed itself."""
    card = terms.model.card
    limits = [
        output_limit(
            asked.param,
            asked.max_tokens,
            terms.cap,
            source=asked.source,
            prompt_tokens=len(prompt.token_ids),
            context_tokens=card.max_model_len,
        )
        for prompt in prompts
    ]
    first = sampling_of(
        body,
        card,
        seed=terms.seed,
        max_tokens=min(limit.tokens for limit in limits),
        logprobs=asked.logprobs,
        prompt_logprobs=asked.prompt_logprobs,
    )
    return tuple(msgspec.structs.replace(first, max_tokens=limit.tokens) for limit in limits), tuple(limit.bound for limit in limits)


def _ends(body: SamplingFields, terms: Terms) -> Ends:
    return Ends(
        strings=stop_strings(body),
        token_ids=tuple(body.stop_token_ids or ()),
        task=ends_of_task(terms.named_task, wants_stops=body.task_stops is not False),
        on_json=bool(body.stop_on_json),
        on_repetition=bool(body.stop_on_repetition),
    )


def _asked_tokens(body: ChatRequest) -> tuple[str, int | None]:
    """Which of the two names a chat's limit came under, and the limit."""
    if body.max_tokens is not None and body.max_completion_tokens is not None and body.max_tokens != body.max_completion_tokens:
        raise Invalid(
            f"max_tokens is {shown(body.max_tokens)} and max_completion_tokens is {shown(body.max_completion_tokens)}: send one of them",
            param="max_completion_tokens",
        )
    if body.max_completion_tokens is not None:
        return "max_completion_tokens", body.max_completion_tokens
    return "max_tokens", body.max_tokens


def _check_stream_options(body: SamplingFields, options: StreamOptions | None) -> None:
    if options is not None and not body.stream:
        raise Invalid("stream_options needs stream: true", param="stream_options")


def _check_text(param: str, text: str, model: TextModel) -> None:
    if not text:
        raise Invalid(f"{param} is empty: send at least one character", param=param)
    _check_text_length(param, len(text), model)


def _check_text_length(param: str, num_chars: int, model: TextModel) -> None:
    if num_chars > model.card.max_model_len * model.tokenizer.most_chars_per_token:
        raise Invalid(
            f"{param} has {num_chars} characters, which can not fit this model's context of {model.card.max_model_len} tokens",
            param=param,
            code="context_length_exceeded",
        )


type AnyRoute = Route[Any]
