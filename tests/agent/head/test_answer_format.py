from __future__ import annotations

import pytest
import torch
from llguidance import LLMatcher

from kafila_agent.head.answer_format import Part, PartKind, call_grammar, find_format
from kafila_agent.head.errors import SamplingError
from kafila_agent.head.grammar import Grammar, GrammarError, json_grammar

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
JSON_STYLE = "<think> {{ tools }} <tool_call>"
MARKED_STYLE = "<think> {{ tools }} <tool_call><function=name>"
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "漢", "days": 2}}\n</tool_call>'
MARKED = "<tool_call>\n<function=weather>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>"

INFINITE = '<tool_call>{"name": "weather", "arguments": {"days": 1e999}}</tool_call>'  # which JSON cannot say


def read(style: str, said: str, step: int, prompt: str = "") -> list[tuple[str, str, str]]:
    """The parts, neighbours of one kind put together, of an answer that comes ``step`` characters at a time."""
    reader = find_format(None, style).reader(prompt, [TOOL])
    parts: list[Part] = []
    for start in range(0, len(said), step):
        parts += reader.feed(said[start : start + step])
    parts += reader.finish()
    merged: list[Part] = []
    for part in parts:
        if merged and merged[-1].kind == part.kind != PartKind.CALL:
            merged[-1] = Part(part.kind, merged[-1].text + part.text)
        else:
            merged.append(part)
    return [(part.kind.value, part.text, part.name) for part in merged]


@pytest.mark.parametrize("step", [1, 2, 7, 1000])
@pytest.mark.parametrize(
    ("style", "prompt", "said", "parts"),
    [
        (JSON_STYLE, "", "Plain < text <t", [("content", "Plain < text <t", "")]),
        (JSON_STYLE, "", "<think>hm</think>\n\nYes.", [("reasoning", "hm", ""), ("content", "Yes.", "")]),
        (JSON_STYLE, "<think>\n", "hm</think>\nYes.", [("reasoning", "hm", ""), ("content", "Yes.", "")]),
        (JSON_STYLE, "", CALL, [("call", '{"city": "漢", "days": 2}', "weather")]),
        (
            JSON_STYLE,
            "",
            f"I look.\n{CALL}\n{CALL}",
            [("content", "I look.", ""), *[("call", '{"city": "漢", "days": 2}', "weather")] * 2],
        ),
        (
            MARKED_STYLE,
            "",
            f"I look.\n{MARKED}",
            [("content", "I look.", ""), ("call", '{"days": 2}', "weather")],
        ),
        (JSON_STYLE, "", "a <tool_call>no</tool_call>", [("content", "a<tool_call>no</tool_call>", "")]),
        (
            JSON_STYLE,
            "",
            '<tool_call>{"name": 5}</tool_call>',
            [("content", '<tool_call>{"name": 5}</tool_call>', "")],
        ),
        (JSON_STYLE, "", INFINITE, [("content", INFINITE, "")]),
        (JSON_STYLE, "", "<think>hm", [("reasoning", "hm", "")]),
    ],
)
def test_an_answer_is_read_alike_however_it_is_cut(style, prompt, said, parts, step):
    assert read(style, said, step, prompt) == parts


@pytest.mark.parametrize("step", [1, 1000, 10**6])
def test_what_is_nested_too_deeply_is_the_text_it_was(step):
    deep = "[" * 5000
    (part,) = read(JSON_STYLE, f'<tool_call>{{"name": "weather", "arguments": {deep}</tool_call>', step)
    assert part[0] == "content"
    assert deep in part[1]


def test_a_model_whose_template_has_neither_answers_in_plain_text():
    assert find_format(None, "{{ messages }}") is None


def test_a_tokenizers_own_template_comes_first_and_sees_the_prompt():
    declared = {
        "start_anchor": "<a>",
        "fields": {"thinking": {"open": "[", "close": "]"}, "content": {"close": "<end>"}},
    }
    reader = find_format(declared, JSON_STYLE).reader("<u>[no]<a>[", ())
    parts = [*reader.feed("hm] yes<end>"), *reader.finish()]
    assert [(part.kind, part.text) for part in parts] == [("reasoning", "hm"), ("content", "yes")]


def test_only_special_tokens_that_mark_something_are_shown():
    marks = find_format(None, JSON_STYLE).marks({"<think>": 7, "<|im_end|>": 2, "</tool_call>": 9})
    assert marks == {"<think>": 7, "</tool_call>": 9}


def accepts(text, lark: str, said: str) -> tuple[bool, bool]:
    """Whether ``said`` can begin an answer of this form, and whether it is one."""
    grammar = Grammar(text.lexicon, lark)
    matcher = LLMatcher(text.lexicon, grammar._source, log_level=0)
    ids = text.encode(said)
    return matcher.try_consume_tokens(ids) == len(ids), matcher.is_accepting()


@pytest.mark.parametrize(
    ("said", "free", "forced"),
    [
        ("Just text.", True, False),
        (CALL, True, True),
        (f"{CALL}\n{CALL}", True, True),
        (f"I look. {CALL}", True, False),
        (CALL.replace('"days"', '"weeks"'), False, False),
        (CALL.replace('"weather"', '"clock"'), False, False),
        (CALL.replace("2", '"two"'), False, False),
    ],
)
def test_a_call_that_is_enforced_is_one_of_the_tools(text, said, free, forced):
    assert accepts(text, call_grammar([TOOL], may_talk=True, several=True), said) == (free, free)
    assert accepts(text, call_grammar([TOOL], may_talk=False, several=True), said)[1] == forced


def test_several_calls_only_where_they_are_wanted(text):
    assert accepts(text, call_grammar([TOOL], may_talk=False, several=False), CALL) == (True, True)
    assert not accepts(text, call_grammar([TOOL], may_talk=False, several=False), f"{CALL}\n{CALL}")[0]


@pytest.mark.parametrize(
    ("schema", "said", "right"),
    [
        ({"type": "integer", "minimum": 3}, "17", True),
        ({"type": "integer", "minimum": 3}, "2", False),
        ({"enum": ["a", None]}, "null", True),
        ({"type": "array", "items": {"type": "boolean"}, "maxItems": 2}, "[true, false]", True),
        ({"type": "array", "items": {"type": "boolean"}, "maxItems": 1}, "[true, false]", False),
        ({"type": "string", "pattern": "^[a-c]+$"}, '"abc"', True),
        ({"$ref": "#/$defs/n", "$defs": {"n": {"const": 5}}}, "5", True),
    ],
)
def test_a_schema_is_kept_to(text, schema, said, right):
    assert accepts(text, json_grammar(schema), said)[1] == right


@pytest.mark.parametrize(
    "schema", [{"type": "objekt"}, {"not": {"type": "null"}}, {"type": "string", "pattern": "("}]
)
def test_what_cannot_be_kept_to_is_refused_with_a_reason(text, schema):
    with pytest.raises(GrammarError, match=r"\w"):
        Grammar(text.lexicon, json_grammar(schema))


def test_a_form_that_is_lost_is_no_answer(text):
    grammar = Grammar(text.lexicon, json_grammar({"type": "object"}))
    mask = grammar.start_answer(1)
    scores = torch.zeros(1, text.vocab_size)
    allowed = mask(torch.tensor([[0]]), scores)[0].isfinite()
    assert 0 < allowed.sum() < text.vocab_size
    wrong = int((~allowed).nonzero()[0])
    with pytest.raises(SamplingError, match="cannot be followed further"):
        mask(torch.tensor([[0, wrong]]), scores)
