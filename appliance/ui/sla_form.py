"""The fields of an SLA as inputs of a form, and back. What values may be is for `slas.decisions` to say."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from appliance.docstrings import field_docs
from appliance.domain.slas.decisions import SLA_FIELDS, Lane, OutputCapMode, Sla, Task
from appliance.errors import Invalid
from appliance.ui.forms import Form
from engine.wire import LANES

DOCS = field_docs(Sla)
OVERRIDE = "override"
"""Name of the boxes that say which fields a tenant has of its own."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field. `table` has an input for each of `keys`; empty inputs are "no limit" or "no target"."""

    name: str
    label: str
    kind: Literal["whole", "number", "table", "lanes", "choice", "flag"]
    unit: str = ""
    keys: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()

    @property
    def help(self) -> str:
        return DOCS.get(self.name, "").replace("`", "")


@dataclass(frozen=True, slots=True)
class Group:
    title: str
    fields: tuple[Field, ...]


GROUPS = (
    Group(
        "Targets",
        (
            Field("ttft_ms", "Time to first token", "table", "ms", LANES),
            Field("tpot_ms", "Time per output token", "table", "ms", LANES),
            Field("objective", "Objective", "table", "share, 0 to 1", LANES),
        ),
    ),
    Group(
        "Contract and ceilings",
        (
            Field("committed_tpm", "Committed tokens", "whole", "a minute"),
            Field("tpm", "Tokens", "whole", "a minute"),
            Field("rpm", "Requests", "whole", "a minute"),
            Field("max_concurrency", "Requests in flight", "whole"),
            Field("max_queued", "Requests waiting", "whole"),
            Field("queue_ttl_ms", "Longest wait", "whole", "ms"),
            Field("tokens_per_day", "Tokens", "whole", "a day"),
            Field("tokens_per_month", "Tokens", "whole", "a month"),
        ),
    ),
    Group(
        "Share and order",
        (
            Field("weight", "Weight", "number"),
            Field("priority", "Priority", "whole"),
            Field("lanes", "Lanes", "lanes", keys=LANES),
            Field("default_lane", "Default lane", "choice", choices=("auto", *get_args(Lane))),
        ),
    ),
    Group(
        "Sizes and memory",
        (
            Field("max_context", "Prompt plus output", "whole", "tokens"),
            Field("output_caps", "Output", "table", "tokens", get_args(Task)),
            Field("output_cap_mode", "A larger max_tokens is", "choice", choices=get_args(OutputCapMode)),
            Field("kv_reserve", "KV reserve", "number", "0 to 1"),
            Field("kv_cap", "KV cap", "number", "0 to 1"),
        ),
    ),
    Group("Trial", (Field("shadow_mode", "Shadow mode", "flag"),)),
)
FIELDS = tuple(field for group in GROUPS for field in group.fields)
assert {field.name for field in FIELDS} == set(SLA_FIELDS)
WORDS = {field.name: f"{field.label}, {field.unit}" if field.unit else field.label for field in FIELDS}


def field_words(name: str) -> str:
    """What forms call a field of an SLA; other fields are called by their own name."""
    return WORDS.get(name, name.replace("_", " "))


def inputs_of(field: Field, value: Any) -> dict[str, str]:
    """What its inputs hold for a value, by their names."""
    match field.kind:
        case "table":
            by_key = value if isinstance(value, Mapping) else dict.fromkeys(field.keys, value)
            return {f"{field.name}.{key}": _text(by_key.get(key)) for key in field.keys}
        case "lanes":
            return {field.name: " ".join(value)}
        case "flag":
            return {field.name: "1" if value else ""}
        case _:
            return {field.name: _text(value)}


def all_inputs(sla: Sla) -> dict[str, str]:
    """`inputs_of` every field."""
    return {name: text for field in FIELDS for name, text in inputs_of(field, getattr(sla, field.name)).items()}


def given_inputs(form: Form) -> dict[str, str]:
    """The same, as a form that was sent holds them: it is shown again where something is wrong with it."""
    names = [f"{field.name}.{key}" if field.kind == "table" else field.name for field in FIELDS for key in field.keys or ("",)]
    return {name: " ".join(form.all(name)) for name in names}


def read_sla(form: Form, present: Sla) -> dict[str, Any]:
    """The fields that differ from an SLA. Raises `Invalid` for what is no number."""
    read = {field.name: read_field(form, field, getattr(present, field.name)) for field in FIELDS}
    return {name: value for name, value in read.items() if value != getattr(present, name)}


def read_overrides(form: Form, tier: Sla) -> dict[str, Any]:
    """The fields whose box is ticked. Raises as `read_sla`."""
    ticked = form.all(OVERRIDE)
    return {field.name: read_field(form, field, getattr(tier, field.name)) for field in FIELDS if field.name in ticked}


def read_field(form: Form, field: Field, present: Any) -> Any:
    """A field's value; the present one where the inputs say the same in another way."""
    if field.kind != "flag" and given_of(form, field) == inputs_of(field, present):
        return present
    match field.kind:
        case "whole":
            return form.whole(field.name)
        case "number":
            number = form.number(field.name)
            if number is None:
                raise Invalid(f"{field.name} must be a number", param=field.name)
            return number
        case "table":
            return _read_table(form, field)
        case "lanes":
            return tuple(form.all(field.name))
        case "flag":
            return form.flag(field.name)
        case "choice":
            return form.text(field.name)


def given_of(form: Form, field: Field) -> dict[str, str]:
    """What the inputs of one field hold."""
    if field.kind == "table":
        return {name: form.text(name) for name in (f"{field.name}.{key}" for key in field.keys)}
    return {field.name: " ".join(form.all(field.name)) if field.kind == "lanes" else form.text(field.name)}


def _read_table(form: Form, field: Field) -> dict[str, float] | None:
    """By key, whole numbers where they are; None where nothing is given (an objective then has its default)."""
    by_key: dict[str, float] = {}
    for key in field.keys:
        number = form.number(f"{field.name}.{key}")
        if number is not None:
            by_key[key] = int(number) if field.name == "output_caps" and number == int(number) else number
    if not by_key:
        return Sla().objective if field.name == "objective" else None  # pyright: ignore[reportReturnType]
    return by_key


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:g}" if isinstance(value, float) and abs(value) < 1e6 else str(value)
