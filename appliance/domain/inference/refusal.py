"""The report of a request that was not admitted."""

from appliance.domain.access.principal import Principal
from appliance.domain.inference.call import Call, Stamps
from appliance.domain.inference.facts import CLIENT_CLOSED_STATUS, Cancellation
from appliance.errors import ApplianceError, Forbidden, OverOwnLimit, Unavailable
from appliance.problems import problem_of
from appliance.telemetry.requests import MAX_MESSAGE_CHARS, Outcome, RequestReport


def refusal_report(
    call: Call, route: str, principal: Principal | None, error: BaseException, lane: str, stamps: Stamps, now_ns: int
) -> RequestReport:
    """`error` ended it, before the engine heard of it: a refusal, a client that left, or a defect of ours."""
    is_refusal = isinstance(error, ApplianceError)
    policy = principal.policy if principal else None
    caller = principal or (error if isinstance(error, Forbidden) else None)
    cause = error.cause if isinstance(error, Cancellation) else ""
    return RequestReport(
        request_id=call.request_id,
        route=route,
        tenant_id=caller.tenant_id if caller else "",
        lane=lane,
        outcome=Outcome.REJECTED if is_refusal else Outcome.CANCELLED if cause else Outcome.FAILED,
        status=problem_of(error).status if is_refusal else CLIENT_CLOSED_STATUS if cause else 500,
        key_id=caller.key_id if caller else "",
        error_code=error.code if is_refusal else "" if cause else "internal_error",
        rejection=_reason(error) if is_refusal else "",
        stage="queue" if cause else "",
        cause=cause,
        received_ns=call.received_ns,
        held_ns=stamps.held_ns,
        read_ns=stamps.read_ns,
        tokenized_ns=stamps.tokenized_ns,
        prompt_tokens=stamps.prompt_tokens if is_refusal else 0,
        ttft_target_s=policy.ttft_s.get(lane) if policy else None,
        tpot_target_s=policy.tpot_s.get(lane) if policy else None,
        trace=call.trace,
        message=error.message[:MAX_MESSAGE_CHARS] if is_refusal else "",
        ended_ns=now_ns,
    )


def _reason(error: ApplianceError) -> str:
    """The metric's label of a refusal."""
    match error:
        case OverOwnLimit(reason=reason):
            return reason
        case Unavailable(reason=reason):
            return reason
        case ApplianceError(code="context_length_exceeded"):
            return "too_long"
        case _:
            return "invalid"
