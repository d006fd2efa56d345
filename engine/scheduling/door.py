"""Validation at the door: JAX clamps and drops out-of-range indices in silence, so a bad id would give wrong text."""

import math
from collections.abc import Collection, Mapping

from engine.errors import InvalidSequence
from engine.scheduling.kv_memory import KvMemory
from engine.scheduling.limits import Limits
from engine.scheduling.request import Sequence
from engine.wire import MAX_LOGIT_BIAS, MAX_LOGPROBS, MAX_STOP_IDS, Sampling, Submit


def check_submit(submit: Submit, limits: Limits) -> None:
    """Refuse what can not be run whatever the load. What the pool can not hold, `check_pool` refuses.

    Raises:
        InvalidSequence: says which field, its value, and the bound.
    """
    if not submit.prompt:
        raise InvalidSequence("the prompt is empty: at least one token is needed")
    _check_ids("prompt", submit.prompt, limits.vocab_size)
    _check_lengths(len(submit.prompt), submit.sampling, limits.max_model_len)
    _check_sampling(submit.sampling, limits.vocab_size)


def check_pool(sequence: Sequence, limits: Limits, memory: KvMemory) -> None:
    """Refuse what the pool could not hold if it were empty but for what is pinned and reserved.

    Raises:
        InvalidSequence: says how many pages it needs, and how many there are.
    """
    needed = limits.pages_for(sequence.max_tokens - 1)
    if needed <= limits.num_pages - memory.num_pinned:
        return
    available = memory.pages_ever_available(sequence)
    if needed > available:
        raise InvalidSequence(
            f"the prompt has {sequence.prompt_tokens} tokens and max_tokens is {sequence.submit.sampling.max_tokens}: that needs"
            f" {needed} KV pages of {limits.page_size} tokens, and the pool has {available} for one sequence"
        )


def leader_of(sequence: Sequence, live: Mapping[int, Sequence], limits: Limits) -> Sequence | None:
    """The first output of its prompt, of whose pages it may take copies. None: it ended already, or the prompt has to be scored.

    Raises:
        InvalidSequence: the two do not share a prompt.
    """
    submit = sequence.submit
    leader = live.get(submit.sibling_of) if submit.sibling_of is not None else None
    if leader is None or sequence.wants_prompt_logprobs or limits.contiguous_kv:
        return None
    if (leader.submit.salt, leader.submit.prompt) != (submit.salt, submit.prompt):
        raise InvalidSequence(f"sibling_of is {submit.sibling_of}: that sequence has another prompt or another salt")
    return leader


def _check_ids(field: str, ids: Collection[int], vocab_size: int) -> None:
    if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
        wrong = next(token_id for token_id in ids if not 0 <= token_id < vocab_size)
        raise InvalidSequence(f"{field} has token id {wrong}: ids of this model are 0 to {vocab_size - 1}")


def _check_lengths(prompt_tokens: int, sampling: Sampling, max_model_len: int) -> None:
    if sampling.max_tokens < 1:
        raise InvalidSequence(f"max_tokens is {sampling.max_tokens}: it must be at least 1")
    if prompt_tokens >= max_model_len:
        raise InvalidSequence(f"the prompt has {prompt_tokens} tokens: with one token of output the context holds {max_model_len - 1}")
    if prompt_tokens + sampling.max_tokens > max_model_len:
        raise InvalidSequence(
            f"the prompt has {prompt_tokens} tokens and max_tokens is {sampling.max_tokens}: together"
            f" {prompt_tokens + sampling.max_tokens}, and the context holds {max_model_len}; at most {max_model_len - prompt_tokens}"
            " tokens of output are left"
        )
    if not 0 <= sampling.min_tokens <= sampling.max_tokens:
        raise InvalidSequence(f"min_tokens is {sampling.min_tokens}: it must be between 0 and max_tokens, {sampling.max_tokens}")


def _check_sampling(sampling: Sampling, vocab_size: int) -> None:
    if len(sampling.logit_bias) > MAX_LOGIT_BIAS:
        raise InvalidSequence(f"logit_bias has {len(sampling.logit_bias)} entries: at most {MAX_LOGIT_BIAS}")
    if len(sampling.stop_token_ids) > MAX_STOP_IDS:
        raise InvalidSequence(f"stop_token_ids has {len(sampling.stop_token_ids)} entries: at most {MAX_STOP_IDS}")
    _check_ids("logit_bias", sampling.logit_bias, vocab_size)
    _check_ids("stop_token_ids", sampling.stop_token_ids, vocab_size)
    if not all(math.isfinite(bias) for bias in sampling.logit_bias.values()):
        raise InvalidSequence("logit_bias has a value that is not a finite number")
    for field in ("logprobs", "prompt_logprobs"):
        if not -1 <= getattr(sampling, field) <= MAX_LOGPROBS:
            raise InvalidSequence(f"{field} is {getattr(sampling, field)}: it must be between 0 and {MAX_LOGPROBS}, or -1 for none")
    for field, lowest, highest in (
        ("temperature", 0.0, math.inf),
        ("top_p", 0.0, 1.0),
        ("min_p", 0.0, 1.0),
        ("repetition_penalty", 0.0, math.inf),
        ("presence_penalty", -math.inf, math.inf),
        ("frequency_penalty", -math.inf, math.inf),
    ):
        value = getattr(sampling, field)
        if not (math.isfinite(value) and lowest <= value <= highest):
            raise InvalidSequence(f"{field} is {value}: it must be a finite number from {lowest:g} to {highest:g}")
    if sampling.top_p == 0 or sampling.repetition_penalty == 0:
        raise InvalidSequence("top_p and repetition_penalty must be greater than 0")
    if sampling.top_k < 0:
        raise InvalidSequence(f"top_k is {sampling.top_k}: it must be positive, or 0 for the whole vocabulary")
    if not 0 <= sampling.seed < 2**32:
        raise InvalidSequence(f"seed is {sampling.seed}: it must fit 32 bits")
