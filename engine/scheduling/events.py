"""What the control plane is told of a sequence."""

from collections.abc import Collection

from engine.scheduling.request import Sequence
from engine.wire import FinishReason, SequenceEvent, TokenLogprob


def finish_reason(sequence: Sequence, token: int, eos_token_ids: Collection[int]) -> FinishReason | None:
    """Whether its newest token, which it has already, ends it."""
    sampling = sequence.submit.sampling
    is_eos = token in eos_token_ids and not sampling.ignore_eos
    if (is_eos or token in sampling.stop_token_ids) and len(sequence.tokens) - sequence.prompt_tokens >= sampling.min_tokens:
        return FinishReason.STOP
    return FinishReason.LENGTH if len(sequence.tokens) >= sequence.max_tokens else None


def event_of(sequence: Sequence, tokens: tuple[int, ...], logprobs: tuple[TokenLogprob, ...], finish: FinishReason | None) -> SequenceEvent:
    """Its next event; the first one also says what became of its prompt."""
    stop_token_id = tokens[0] if finish is FinishReason.STOP else None
    if sequence.first_event_sent:
        return SequenceEvent(sequence.sequence_id, tokens, logprobs, finish, stop_token_id)
    sequence.first_event_sent = True
    return SequenceEvent(
        sequence.sequence_id,
        tokens,
        logprobs,
        finish,
        stop_token_id,
        cached_tokens=sequence.cached_tokens,
        scheduled_ns=sequence.scheduled_ns,
        prompt_logprobs=tuple(sequence.prompt_logprobs[: sequence.prompt_tokens - 1]),
        lane=sequence.submit.lane,
    )
