"""How long an output may become: by what was asked for, the task's cap and the room that is left. Pure."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, get_args

from appliance.domain.inference.parameters import shown
from appliance.domain.slas.decisions import OutputCapMode, Task
from appliance.errors import Invalid
from engine.wire import ModelCard, TenantPolicy

BUILT_IN_CAPS_TOKENS: dict[Task, int] = {"extract": 96, "chat": 384, "reason": 768, "other": 256}
"""Where the tenant's tier has no cap for the task."""
LONG_PROMPT_TOKENS = 4_000
LONG_PROMPT_CAP_TOKENS = 256
"""Above so many prompt tokens an output is capped here whatever its task: it holds the prompt's pages as long as it runs."""

type Bound = Literal["max_tokens", "output_cap", "context"]
"""What ends an output that runs to its limit."""


@dataclass(frozen=True, slots=True)
class TaskCap:
    """The cap of one request: `tokens` for its task, and what it does to an explicit number above it."""

    task: Task
    tokens: int
    mode: OutputCapMode

    def tokens_after(self, prompt_tokens: int) -> int:
        """The cap of an output that follows so many tokens."""
        return min(self.tokens, LONG_PROMPT_CAP_TOKENS) if prompt_tokens > LONG_PROMPT_TOKENS else self.tokens


@dataclass(frozen=True, slots=True)
class OutputLimit:
    """Most tokens of an output, and which bound that is."""

    tokens: int
    bound: Bound


def task_of(field: Task | None, header: str | None) -> Task | None:
    """The task that a request names, in its body or in its header `X-Task`. Raises `Invalid`."""
    if header is None:
        return field
    for task in get_args(Task):
        if header == task:
            if field is not None and field != task:
                raise Invalid(f"task is {field!r} in the body and {task!r} in the header X-Task: send one of them", param="task")
            return task
    raise Invalid(f"X-Task is {header[:64]!r}; it must be one of {', '.join(get_args(Task))}", param="X-Task")


def cap_of(policy: TenantPolicy, named: Task | None, route_task: Task) -> TaskCap:
    """The cap for the task a request names, else for its route's. Who names a task asks for its cap: then `fill` clamps, too.

    In shadow mode nothing explicit is limited.
    """
    task = named or route_task
    mode = "clamp" if named is not None and policy.output_cap_mode == "fill" else policy.output_cap_mode
    return TaskCap(task, policy.output_caps_tokens.get(task, BUILT_IN_CAPS_TOKENS[task]), "fill" if policy.shadow_mode else mode)


def output_limit(param: str, asked: int | None, cap: TaskCap, *, source: str, prompt_tokens: int, context_tokens: int) -> OutputLimit:
    """How long an output after a prompt may become; the prompt came in the field `source`, `asked` in the field `param`.

    Raises:
        Invalid: the prompt fills the context, more is asked for than is left, or than a refusing cap allows; the message has the numbers.
    """
    left = context_tokens - prompt_tokens
    if left < 1:
        raise Invalid(
            f"the prompt has {prompt_tokens} tokens; the context is {context_tokens} tokens, prompt and output together",
            param=source,
            code="context_length_exceeded",
        )
    capped = cap.tokens_after(prompt_tokens)
    if asked is None:
        return OutputLimit(capped, "output_cap") if capped < left else OutputLimit(left, "context")
    if asked < 1:
        raise Invalid(f"{param} is {shown(asked)}; it must be at least 1", param=param)
    if asked > left:
        raise Invalid(
            f"{param} is {shown(asked)} and the prompt has {prompt_tokens} tokens: at most {left} fit the context of {context_tokens}",
            param=param,
            code="context_length_exceeded",
        )
    if asked <= capped or cap.mode == "fill":
        return OutputLimit(asked, "max_tokens")
    if cap.mode == "refuse":
        raise Invalid(
            f"{param} is {shown(asked)}; this tenant's outputs for task {cap.task!r} have at most {capped} tokens after a prompt of"
            f" {prompt_tokens}: ask for no more, or leave {param} out",
            param=param,
            code="output_cap_exceeded",
        )
    return OutputLimit(capped, "output_cap")


@contextmanager
def told_as_tenants(policy: TenantPolicy, card: ModelCard) -> Iterator[None]:
    """What is too long for the tenant's `max_context`, and may fit the model, is told so."""
    try:
        yield
    except Invalid as error:
        own = policy.max_context_tokens
        if error.code != "context_length_exceeded" or own is None or own >= card.max_model_len:
            raise
        message = f"{error.message} (the max_context of tenant {policy.tenant_id!r}; the model itself has {card.max_model_len})"
        raise Invalid(message, code=error.code, param=error.param) from error
