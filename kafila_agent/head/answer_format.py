"""How a model writes what is not plain text, its thoughts and its tool calls, and how that is read.

The reading is transformers' own parser, told by a response template: the one that the model's tokenizer declares, or
one for the ways of writing that most chat templates share:

    <think>…</think>
    <tool_call>{"name": …, "arguments": {…}}</tool_call>
    <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>
"""

from __future__ import annotations

import contextlib
import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers.utils.chat_parsing import ResponseParser

from kafila_agent.head.grammar import ANY_OBJECT, json_rule, literal, one_of

_THINK, _THOUGHT = "<think>", "</think>"
_CALL, _CALLED = "<tool_call>", "</tool_call>"
_THOUGHT_FIELD = {"open": _THINK, "close": _THOUGHT, "content": "text"}
_JSON_CALL_FIELD = {
    "open_pattern": rf"\s*{_CALL}\s*",
    "close_pattern": rf"\s*{_CALLED}",
    "repeats": True,
    "content": "json",
    "content_args": {"allow_non_json": True},
    "transform": {"type": "function", "function": "{content}"},
}
_MARKED_CALL_FIELD = {
    "open_pattern": rf"\s*{_CALL}\s*<function=(?P<name>[^>\n]+)>",
    "close_pattern": rf"</function>\s*{_CALLED}",
    "repeats": True,
    "content": "xml-inline",
    "content_args": {"tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\s*(?P<value>.*?)\s*</parameter>"},
    "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
}
_THOUGHT_NAMES = ("reasoning_content", "reasoning", "thinking")
_CALLS = "tool_calls"

Tool = Mapping[str, Any]  # as OpenAI's API has it: {"type": "function", "function": {...}}


class PartKind(enum.StrEnum):
    """What a piece of an answer is."""

    CONTENT = "content"
    REASONING = "reasoning"
    CALL = "call"


@dataclass(frozen=True, slots=True)
class Part:
    """Some of an answer. Of a CALL, ``name`` is the function's and ``text`` its arguments, one JSON object."""

    kind: PartKind
    text: str
    name: str = ""


@dataclass(frozen=True)
class AnswerFormat:
    """One model's. ``declared``: its response template is its own, with its own idea of where an answer starts."""

    template: Mapping[str, Any]
    declared: bool = False

    @property
    def has_calls(self) -> bool:
        """Whether it can call tools."""
        return _CALLS in self.template["fields"]

    @property
    def has_thoughts(self) -> bool:
        """Whether it may think before it answers, between ``<think>`` and ``</think>``."""
        return self.template["fields"].get(_THOUGHT_NAMES[0]) == _THOUGHT_FIELD

    @property
    def has_json_calls(self) -> bool:
        """Whether calls can be asked for by a grammar (``call_grammar``)."""
        return self.template["fields"].get(_CALLS) == _JSON_CALL_FIELD

    def marks(self, special_tokens: Mapping[str, int]) -> dict[str, int]:
        """Those of the special tokens (text to id) that the parser must see in the text."""
        patterns = json.dumps(self.template, ensure_ascii=False)
        return {text: token for text, token in special_tokens.items() if text in patterns}

    def reader(self, prompt: str, tools: Sequence[Tool]) -> AnswerReader:
        """Reads one answer to ``prompt``. Without ``tools`` there are no calls in it."""
        fields = {name: each for name, each in self.template["fields"].items() if tools or name != _CALLS}
        prefix = prompt if self.declared else _THINK if thinks(prompt) else ""
        return AnswerReader(ResponseParser({**self.template, "fields": fields}, prefix, tools=list(tools)))


def thinks(prompt: str) -> bool:
    """Whether the prompt ends where the model is to think."""
    return prompt.rstrip().endswith(_THINK)


def find_format(declared: Mapping[str, Any] | None, chat_template: str) -> AnswerFormat | None:
    """How a model with this chat template answers; None: in plain text, as far as can be told."""
    if declared is not None:
        return AnswerFormat(declared, declared=True)
    fields: dict[str, Any] = {}
    if _THINK in chat_template or _THOUGHT in chat_template:
        fields[_THOUGHT_NAMES[0]] = _THOUGHT_FIELD
    if _CALL in chat_template:
        fields[_CALLS] = _MARKED_CALL_FIELD if "<function=" in chat_template else _JSON_CALL_FIELD
    if not fields:
        return None
    return AnswerFormat({"start_anchor_pattern": r"\A", "fields": fields | {"content": {"content": "text"}}})


def call_grammar(tools: Sequence[Tool], *, may_talk: bool, several: bool) -> str:
    """Calls of ``tools`` as JSON between tags, in Lark; ``may_talk``: with text before, or text alone."""
    rules = [f"call_{i}" for i in range(len(tools))]
    lines = ["start: answer", f"call: {one_of(rules)}"]
    for rule, tool in zip(rules, tools, strict=True):
        function = tool["function"]
        opening = f'\n{{"name": {json.dumps(function["name"])}, "arguments": '
        begin, end = literal(opening if may_talk else _CALL + opening), literal("}\n" + _CALLED)
        lines.append(f"{rule}: {begin} {json_rule(function.get('parameters') or ANY_OBJECT)} {end}")
    if may_talk:
        lines.append("answer: talk | opening call" + (" (opening call)*" if several else ""))
        lines.append("talk: /(.|\\n)*/")
        lines.append("opening[lazy]: /(.|\\n)*/ " + literal(_CALL))
    else:
        lines.append("answer: call" + (' ("\\n" call)*' if several else ""))
    return "\n".join([*lines, ""])


class AnswerReader:
    """Takes an answer's text piece by piece; what the parts say together is the whole of it.

    A call that cannot be understood is given out as the text it was.
    """

    def __init__(self, parser: ResponseParser) -> None:
        self._parser = parser
        self._raw = ""  # of the region that is read as a whole, since it opened
        self._gap = bool(parser.initial_events)  # between a thought or a call and what follows
        self._plain = False

    def feed(self, text: str) -> list[Part]:
        """The parts that ``text`` completes."""
        if self._plain:
            return [Part(PartKind.CONTENT, text)]
        return self._read(lambda: self._parser.feed(text), text)

    def finish(self) -> list[Part]:
        """What was held back."""
        return [] if self._plain else self._read(lambda: self._parser.finalize()[1], "")

    def _read(self, events: Any, text: str) -> list[Part]:
        try:
            return [part for event in events() if (part := self._part(event)) is not None]
        except (ValueError, RecursionError):  # the library could make nothing of a region
            self._plain = True
            rest = self._raw + text
            return [Part(PartKind.CONTENT, rest)] if rest else []

    def _part(self, event: Mapping[str, Any]) -> Part | None:
        field = event["field"]
        match event["type"], field:
            case "region_open", _:
                self._raw = ""
                self._gap = self._gap or field != "content"
            case "region_chunk", "content":
                return self._content(event["text"])
            case "region_chunk", name if name in _THOUGHT_NAMES:
                return Part(PartKind.REASONING, event["text"])
            case "region_chunk", _:
                self._raw += event["text"]
            case "region_close", "tool_calls":
                raw, self._raw = self._raw, ""
                return self._call(event["value"], raw)
        return None

    def _content(self, text: str) -> Part | None:
        """White space right behind a thought or a call belongs to neither."""
        if self._gap:
            text = text.lstrip()
            self._gap = not text
        return Part(PartKind.CONTENT, text) if text else None

    def _call(self, value: Any, raw: str) -> Part:
        function = value.get("function") if isinstance(value, dict) else None
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            arguments = function.get("arguments", {})
            with contextlib.suppress(ValueError):  # infinite numbers, which JSON cannot say
                text = (
                    arguments
                    if isinstance(arguments, str)
                    else json.dumps(arguments, ensure_ascii=False, allow_nan=False)
                )
                return Part(PartKind.CALL, text, function["name"])
        return Part(PartKind.CONTENT, f"{_CALL}{raw}{_CALLED}")
