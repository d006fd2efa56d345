"""Chat templates: messages to the one text a model continues. Rendered as Hugging Face does (`apply_chat_template`)."""

import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from appliance.errors import Invalid


class ChatTemplate:
    """A model's chat template, compiled once. It runs in a sandbox: it comes with the model, not from us."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], now: Callable[[], datetime.datetime]) -> None:
        """`special_tokens`: what the template may name (`bos_token`, ...); `now` answers `strftime_now`.

        Raises:
            jinja2.TemplateSyntaxError: the model's template is broken.
        """
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationMarks, loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda format: now().strftime(format)
        self._template = environment.from_string(source)
        self._special_tokens = dict(special_tokens)

    def render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool) -> str:
        """The conversation as text, with the head of the assistant's turn where asked for.

        Raises:
            Invalid: the template refuses the messages (a role, their order, a missing content), in its own words.
        """
        try:
            return self._template.render(messages=messages, add_generation_prompt=add_generation_prompt, **self._special_tokens)
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise Invalid(f"the model's chat template refuses these messages: {error}", param="messages", code="template_error") from error


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False) -> str:
    """Jinja's own filter escapes HTML, which a prompt must not contain."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _GenerationMarks(Extension):
    """`{% generation %}` marks the assistant's tokens for training; here its content is simply output."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
