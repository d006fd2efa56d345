"""Checks every number of a request at the door and builds the wire's `Sampling`. On the device nothing is checked:
JAX clamps and drops what is out of range in silence, so a bad id would be wrong text, not an error.
"""

import re
from collections.abc import Sequence

from appliance.domain.inference.schemas import SamplingFields
from appliance.errors import Invalid
from engine.wire import MAX_LOGIT_BIAS, MAX_LOGPROBS, MAX_STOP_IDS, ModelCard, Sampling

MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 512
MAX_SEQUENCES = 128
"""Most outputs of one request: prompts times n."""
MAX_SHOWN_DIGITS = 40
SEED_MASK = 0xFFFF_FFFF
"""The wire's seeds have 32 bits."""


MAX_DEADLINE_MS = 86_400_000
"""A day."""

_DECIMAL = re.compile("[0-9]{1,18}")
_TOKEN_ID = re.compile(r"-?(0|[1-9][0-9]{0,18})")
"""One spelling for each id, so that no two entries are the same one."""


def check_range(param: str, value: float, low: float, high: float, *, above_low: bool = False) -> None:
    """Raises `Invalid` unless the value is a number between the bounds."""
    if not low <= value <= high or (above_low and value == low):  # neither holds for NaN
        lowest, highest = _plain(low), _plain(high)
        bound = f"above {lowest} and at most {highest}" if above_low else f"from {lowest} to {highest}"
        raise Invalid(f"{param} is {shown(value)}; it must be {bound}", param=param)


def _plain(bound: float) -> str:
    """86400000, and not 8.64e+07."""
    return f"{bound:.0f}" if float(bound).is_integer() else f"{bound:g}"


def shown(value: float) -> str:
    """A client's number for a message; JSON's integers may have thousands of digits and be no float at all."""
    text = str(value)
    return text if len(text) <= MAX_SHOWN_DIGITS else f"{text[:MAX_SHOWN_DIGITS]}... ({len(text)} characters)"


def check_token_ids(param: str, token_ids: Sequence[int], vocab_size: int) -> None:
    """Raises `Invalid` for an id that the model does not have."""
    if token_ids and not 0 <= min(token_ids) <= max(token_ids) < vocab_size:
        wrong = next(token_id for token_id in token_ids if not 0 <= token_id < vocab_size)
        raise Invalid(f"{param} has token id {shown(wrong)}; this model's ids are 0 to {vocab_size - 1}", param=param)


def sampling_of(request: SamplingFields, card: ModelCard, *, seed: int, max_tokens: int, logprobs: int, prompt_logprobs: int) -> Sampling:
    """How the request's tokens are chosen. `seed` is used where the request names none.

    Raises:
        Invalid: a parameter is out of bounds; the message has the value and the bounds.
    """
    top_k = max(0, request.top_k or 0)
    temperature = _bounded("temperature", request.temperature, 1.0, 0.0, 2.0)
    if request.top_k is not None:
        check_range("top_k", request.top_k, -1, card.vocab_size)
    min_tokens = request.min_tokens or 0
    check_range("min_tokens", min_tokens, 0, max_tokens)
    return Sampling(
        temperature=temperature,
        top_p=_bounded("top_p", request.top_p, 1.0, 0.0, 1.0, above_low=True),
        top_k=top_k,
        min_p=_bounded("min_p", request.min_p, 0.0, 0.0, 1.0),
        repetition_penalty=_bounded("repetition_penalty", request.repetition_penalty, 1.0, 0.0, 10.0, above_low=True),
        presence_penalty=_bounded("presence_penalty", request.presence_penalty, 0.0, -2.0, 2.0),
        frequency_penalty=_bounded("frequency_penalty", request.frequency_penalty, 0.0, -2.0, 2.0),
        logit_bias=_logit_bias(request.logit_bias or {}, card.vocab_size),
        seed=(seed if request.seed is None else request.seed) & SEED_MASK,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        ignore_eos=bool(request.ignore_eos),
        stop_token_ids=_stop_ids(request.stop_token_ids or [], card.vocab_size),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def stop_strings(request: SamplingFields) -> tuple[str, ...]:
    """The texts that end an output. Raises `Invalid` for too many, an empty or an endless one."""
    stops = (request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ())
    if len(stops) > MAX_STOP_STRINGS:
        raise Invalid(f"stop has {len(stops)} texts; at most {MAX_STOP_STRINGS} are taken", param="stop")
    for stop in stops:
        if not 0 < len(stop) <= MAX_STOP_CHARS:
            raise Invalid(f"stop has a text of {len(stop)} characters; each must have 1 to {MAX_STOP_CHARS}", param="stop")
    return stops


def num_outputs(n: int | None, num_prompts: int) -> int:
    """Outputs for each prompt. Raises `Invalid` when the request would have too many."""
    wanted = 1 if n is None else n
    check_range("n", wanted, 1, MAX_SEQUENCES)
    if wanted * num_prompts > MAX_SEQUENCES:
        total = wanted * num_prompts
        raise Invalid(f"{num_prompts} prompts with n={wanted} are {total} outputs; at most {MAX_SEQUENCES} a request", param="n")
    return wanted


def deadline_ms_of(field: int | None, header: str | None) -> int | None:
    """Milliseconds from receipt that a request may take, from its body or its header `X-Deadline-Ms`. Raises `Invalid`."""
    if header is None:
        name, wanted = "deadline_ms", field
    elif not _DECIMAL.fullmatch(header):
        raise Invalid(f"X-Deadline-Ms is {header[:MAX_SHOWN_DIGITS]!r}; send whole milliseconds, like 1500", param="X-Deadline-Ms")
    elif field is not None and field != int(header):
        message = f"deadline_ms is {shown(field)} in the body and {header} in the header X-Deadline-Ms: send one of them"
        raise Invalid(message, param="deadline_ms")
    else:
        name, wanted = "X-Deadline-Ms", int(header)
    if wanted is not None:
        check_range(name, wanted, 1, MAX_DEADLINE_MS)
    return wanted


def check_logprobs(param: str, number: int) -> int:
    """How many likeliest tokens are listed; raises `Invalid` beyond the bound."""
    check_range(param, number, 0, MAX_LOGPROBS)
    return number


def _bounded(param: str, value: float | None, default: float, low: float, high: float, *, above_low: bool = False) -> float:
    if value is None:
        return default
    check_range(param, value, low, high, above_low=above_low)
    return value


def _logit_bias(bias: dict[str, float], vocab_size: int) -> dict[int, float]:
    if len(bias) > MAX_LOGIT_BIAS:
        raise Invalid(f"logit_bias has {len(bias)} entries; at most {MAX_LOGIT_BIAS} are taken", param="logit_bias")
    for token_id in bias:
        if not _TOKEN_ID.fullmatch(token_id):
            raise Invalid(f"logit_bias must map token ids to numbers: {token_id[:40]!r} is no token id", param="logit_bias")
    by_id = {int(token_id): value for token_id, value in bias.items()}
    check_token_ids("logit_bias", list(by_id), vocab_size)
    for value in by_id.values():
        check_range("logit_bias", value, -100.0, 100.0)
    return by_id


def _stop_ids(token_ids: list[int], vocab_size: int) -> tuple[int, ...]:
    if len(token_ids) > MAX_STOP_IDS:
        raise Invalid(f"stop_token_ids has {len(token_ids)} ids; at most {MAX_STOP_IDS} are taken", param="stop_token_ids")
    check_token_ids("stop_token_ids", token_ids, vocab_size)
    return tuple(token_ids)
