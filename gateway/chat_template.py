"""Chat templates: the model's own jinja2, in a sandbox, under the conventions that transformers gives them.

A template comes with the model, so it is not a stranger's; but models are downloaded, and the sandbox keeps a template
to turning messages into text. Its errors (a role it does not know, turns in the wrong order) are the client's to mend.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

SPECIAL_TOKEN_NAMES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
"""What templates call the special tokens that they use."""
OWN_NAMES = frozenset({*SPECIAL_TOKEN_NAMES, "messages", "tools", "documents", "add_generation_prompt"})
"""What every template is given. Variables have other names."""
MAX_MESSAGE_CHARS = 200
"""Of a template's own error text, which may repeat what it was given."""


class Turn(Enum):
    """How a rendered conversation ends."""

    OPEN = auto()  # for the assistant to go on
    CLOSED = auto()  # behind the last message


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendering:
    """How a conversation is rendered. ``variables`` are the client's own, for templates that look at them: never text,
    since text from there would not be guarded against control tokens (``gateway.control_tokens``).
    """

    turn: Turn = Turn.OPEN
    variables: Mapping[str, bool | float | None] = field(default_factory=dict)


class TemplateFailed(Exception):
    """The template does not take this conversation; the text says why and may be shown."""


class _GenerationTag(jinja2.ext.Extension):
    """``{% generation %}`` marks assistant text for training; here it is transparent."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node | list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """One compiled template. ``special_tokens`` has ``bos_token``, ``eos_token`` and so on."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self._template = environment.from_string(source)
        self._special_tokens = dict(special_tokens)
        self.literals = _literals(environment.parse(source))
        self._knows_developer = "developer" in self.literals

    def render(self, messages: Sequence[Mapping[str, str]], rendering: Rendering) -> str:
        """The prompt text of a conversation. Raises ``TemplateFailed``.

        A ``developer`` message is a ``system`` one to templates that do not know the newer name.
        """
        turns = [dict(message) for message in messages]
        if not self._knows_developer:
            for message in turns:
                if message["role"] == "developer":
                    message["role"] = "system"
        try:
            return self._template.render(
                **rendering.variables,
                **self._special_tokens,
                messages=turns,
                tools=None,
                documents=None,
                add_generation_prompt=rendering.turn is Turn.OPEN,
            )
        except jinja2.TemplateError as error:
            raise TemplateFailed((error.message or "the template failed")[:MAX_MESSAGE_CHARS]) from error
        except (TypeError, ValueError, LookupError, ArithmeticError, RecursionError, OverflowError) as error:
            # A template is a program: these are its own faults on this conversation.
            raise TemplateFailed(f"the template failed with {type(error).__name__}") from error


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Without jinja2's escaping of HTML characters, which would change the prompt."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now(UTC).astimezone().strftime(form)


def _literals(tree: jinja2.nodes.Template) -> str:
    """All the text that the template itself can write, apart by NUL so that no word is made of two."""
    data = [node.data for node in tree.find_all(jinja2.nodes.TemplateData)]
    constants = [node.value for node in tree.find_all(jinja2.nodes.Const) if isinstance(node.value, str)]
    return "\0".join(data + constants)
