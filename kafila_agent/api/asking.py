"""From what a client sends to what the engine is asked: prompt, form of the answer, and how the answer is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from kafila_agent.api.choices import ChatChoice, Choice, Shown, TextChoice
from kafila_agent.api.errors import ApiError
from kafila_agent.api.schemas import ChatRequest, CompletionOptions, TextRequest
from kafila_agent.api.shapes import ChatShape, Prompt, Shape, TextShape
from kafila_agent.head.answer_format import AnswerFormat, call_grammar, thinks
from kafila_agent.head.generation import Request
from kafila_agent.head.grammar import ANY_OBJECT, Grammar, GrammarError, after_thought, json_grammar
from kafila_agent.head.text import Text

_THOUGHT_END = "</think>"


@dataclass(frozen=True)
class Asked:
    """``requests``: one for each choice. ``shape``: what the client gets."""

    requests: Sequence[Request]
    shape: Shape


def ask_chat(body: ChatRequest, text: Text, ring: Sequence[str], member: str) -> Asked:
    """A conversation. Takes milliseconds; seconds where a grammar is first wanted. Raises ApiError, TextError."""
    _require_support(body, text)
    tools = [tool.as_template_knows() for tool in body.offered_tools]
    arguments: dict[str, Any] = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        arguments["reasoning_effort"] = body.reasoning_effort
    try:
        turns = [message.as_turn() for message in body.messages]
    except ValueError as error:
        words = f"Invalid 'messages': the arguments of a tool call are no JSON object ({error})"
        raise ApiError(400, words, param="messages") from error
    prompt = text.encode_chat(turns, tools=tools or None, **arguments)
    said = text.decode(prompt) if text.format is not None else ""
    request = replace(
        _request(body, text, prompt, "messages", member),
        shown=frozenset(text.marks.values()),
        grammar=_grammar(body, text, said),
    )
    shown = _shown(body, text)
    choices = [
        ChatChoice(index, shown, None if text.format is None else text.format.reader(said, tools))
        for index in range(body.n or 1)
    ]
    return _asked(body, request, ChatShape, choices, ring)


def ask_text(body: TextRequest, text: Text, ring: Sequence[str], member: str) -> Asked:
    """A text to go on with. Raises ApiError."""
    try:
        prompt = body.ids(text.encode, text.vocab_size)
    except ValueError as error:
        raise ApiError(400, f"Invalid 'prompt': {error}", param="prompt") from error
    choices = [TextChoice(index, _shown(body, text)) for index in range(body.n or 1)]
    return _asked(body, _request(body, text, prompt, "prompt", member), TextShape, choices, ring)


def _request(body: CompletionOptions, text: Text, prompt: list[int], param: str, member: str) -> Request:
    if not prompt:
        raise ApiError(400, f"Invalid '{param}': it has no tokens", param=param)
    try:
        sampling = body.sampling(text.vocab_size)
    except ValueError as error:
        raise ApiError(400, f"Invalid 'logit_bias': {error}", param="logit_bias") from error
    return Request(
        tuple(prompt),
        body.token_limit,
        sampling,
        tuple(body.stop or ()),
        bool(body.ignore_eos),
        member,
        speculation=body.speculation is not False,
    )


def _asked(
    body: CompletionOptions,
    request: Request,
    shape: type[Shape],
    choices: Sequence[Choice],
    ring: Sequence[str],
) -> Asked:
    """Each choice is drawn with a seed of its own, the first with the one that was given."""
    seed = request.sampling.seed
    requests = [
        request
        if seed is None
        else replace(request, sampling=replace(request.sampling, seed=seed + choice.index))
        for choice in choices
    ]
    prompt = Prompt(body.model, request.prompt if body.return_token_ids else None)
    return Asked(requests, shape(prompt, choices, include_usage=body.include_usage, ring=ring))


def _shown(body: CompletionOptions, text: Text) -> Shown:
    if body.likeliest is not None:
        _ = text.lexicon  # made here, where it may take its time
    return Shown(
        None if body.likeliest is None else text.token_bytes,
        bool(body.return_token_ids),
        frozenset() if body.ignore_eos else text.eos_ids,
    )


def _require_support(body: ChatRequest, text: Text) -> None:
    """Refuse what this model's own template or way of answering knows nothing of."""
    if body.reasoning_effort is not None and not text.heeds("reasoning_effort"):
        raise _unsupported("reasoning_effort", "this model's chat template knows no such setting")
    if not body.offered_tools:
        return
    if not text.heeds("tools"):
        raise _unsupported("tools", "this model's chat template knows no tools")
    if text.format is None or not text.format.has_calls:
        raise _unsupported("tools", "how this model writes a call is not known here")
    if _wants_formed_calls(body) and not _can_form_calls(text.format, text):
        param = "tool_choice" if body.must_call else "parallel_tool_calls"
        param = "tools" if any(tool.function.strict for tool in body.offered_tools) else param
        words = (
            "this model's way of writing calls cannot be enforced: leave tool_choice at 'auto' and strict out"
        )
        raise _unsupported(param, words)


def _wants_formed_calls(body: ChatRequest) -> bool:
    strict = any(tool.function.strict for tool in body.offered_tools)
    return bool(body.offered_tools) and (body.must_call or strict or body.parallel_tool_calls is False)


def _can_form_calls(answer_format: AnswerFormat, text: Text) -> bool:
    return answer_format.has_json_calls and not text.marks.keys() - {"<think>", _THOUGHT_END}


def _grammar(body: ChatRequest, text: Text, said: str) -> Grammar | None:
    """The form of the answer, if one was asked for; behind the thought, where the prompt has begun one."""
    lark, param = _lark(body)
    if lark is None:
        return None
    if text.format is not None and text.format.has_thoughts and thinks(said):
        lark = after_thought(lark, _THOUGHT_END if _THOUGHT_END in text.marks else f'"{_THOUGHT_END}"')
    try:
        return Grammar(text.lexicon, lark)
    except GrammarError as error:
        raise ApiError(400, f"Invalid '{param}': {error}", param=param) from error


def _lark(body: ChatRequest) -> tuple[str | None, str]:
    """The form in Lark, and the argument that it came in."""
    wanted = body.response_format
    if wanted is not None and wanted.type == "json_object":
        return json_grammar(ANY_OBJECT), "response_format"
    if wanted is not None and wanted.type == "json_schema":
        return json_grammar(wanted.json_schema.schema_ or ANY_OBJECT), "response_format.json_schema.schema"
    if not _wants_formed_calls(body):
        return None, ""
    tools = [tool.as_template_knows() for tool in body.offered_tools]
    several = body.parallel_tool_calls is not False
    return call_grammar(tools, may_talk=not body.must_call, several=several), "tools"


def _unsupported(param: str, why: str) -> ApiError:
    return ApiError(400, f"'{param}' is not supported: {why}", param=param, code="unsupported_parameter")
