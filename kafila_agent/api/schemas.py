"""Requests as OpenAI's API defines them, plus the sampling extras that other servers share.

An argument either works, or is known to be harmless and ignored, or is refused by name: never silence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from kafila_agent.head.generation import Request
from kafila_agent.head.sampler import Sampling

MAX_STOPS = 16


def _only(*neutral: Any) -> AfterValidator:
    """An argument that is not supported, of which only the values that ask for nothing are taken."""

    def check(value: Any) -> Any:
        if any(type(value) is type(known) and value == known for known in (None, *neutral)):
            return value
        raise PydanticCustomError("unsupported", "this server does not support it")

    return AfterValidator(check)


def _invalid(message: str) -> PydanticCustomError:
    return PydanticCustomError("invalid", "{message}", {"message": message})


def _joined(content: Any) -> Any:
    """A message's content: a string, or text parts put together."""
    if not isinstance(content, list):
        return content
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise _invalid("only parts of type 'text' are supported")
    return "".join(part["text"] for part in content)


def _single(prompt: Any) -> Any:
    """A completion's prompt: a string or token ids, possibly the only one of a list."""
    if isinstance(prompt, list) and prompt and not all(type(token) is int for token in prompt):
        if len(prompt) > 1:
            raise _invalid("one prompt a request is supported")
        prompt = prompt[0]
    ids = isinstance(prompt, list) and all(type(token) is int and token >= 0 for token in prompt)
    if not prompt or not (isinstance(prompt, str) or ids):
        raise _invalid("expected a text or a list of token ids, not empty")
    return prompt


def _stops(stop: Any) -> Any:
    return [stop] if isinstance(stop, str) else stop


def _token_ids(biases: dict[str, float] | None) -> dict[str, float] | None:
    if not all(key.isascii() and key.isdigit() for key in biases or ()):
        raise _invalid("keys must be token ids")
    return biases


Ignored = Any
Unit = Annotated[float, Field(ge=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Positive = Annotated[int, Field(ge=1)]
Stops = Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=MAX_STOPS)]
Biases = dict[str, Annotated[float, Field(ge=-100, le=100)]]


class StreamOptions(BaseModel):
    """``include_usage`` adds one last chunk with the token counts."""

    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool | None = None
    include_obfuscation: Ignored = None


class CompletionOptions(BaseModel):
    """What both endpoints take."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Positive | None = None
    stop: Annotated[Stops | None, BeforeValidator(_stops)] = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Unit | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Annotated[Biases | None, AfterValidator(_token_ids)] = None

    # Extras that other servers have under these names.
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Unit | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] | None = None
    ignore_eos: bool | None = None
    return_token_ids: bool | None = None

    # They change nothing in the answer.
    user: Ignored = None
    metadata: Ignored = None
    store: Ignored = None
    service_tier: Ignored = None
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None

    n: Annotated[Any, _only(1)] = None

    @model_validator(mode="after")
    def _usage_needs_a_stream(self) -> CompletionOptions:
        if self.stream_options is not None and not self.stream:
            raise _invalid("stream_options is only allowed when stream is true")
        return self

    def shown(self, prompt: list[int]) -> dict[str, Any]:
        """What the answer's shape is to show beside its text: the token counts, the token ids."""
        include_usage = bool(self.stream_options and self.stream_options.include_usage)
        return {"include_usage": include_usage, "prompt_ids": prompt if self.return_token_ids else None}

    @property
    def token_limit(self) -> int | None:
        """Tokens of the answer, at most."""
        return self.max_tokens

    def sampling(self, vocab_size: int) -> Sampling:
        """How to sample. Raises ValueError for a bias on a token that is not there."""
        biases = {int(token): bias for token, bias in (self.logit_bias or {}).items()}
        if unknown := [token for token in biases if token >= vocab_size]:
            raise ValueError(f"token {unknown[0]} is outside the vocabulary of {vocab_size}")
        given: dict[str, Any] = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": None if self.top_k == -1 else self.top_k,
            "min_p": self.min_p,
            "seed": self.seed,
            "repetition_penalty": self.repetition_penalty,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
        }
        return Sampling(
            logit_bias=biases, **{name: value for name, value in given.items() if value is not None}
        )

    def engine_request(self, prompt: list[int], vocab_size: int, member: str) -> Request:
        """What the engine is asked on behalf of ``member``.

        Raises ValueError as ``sampling`` does, and for an empty prompt.
        """
        return Request(
            tuple(prompt),
            self.token_limit,
            self.sampling(vocab_size),
            tuple(self.stop or ()),
            bool(self.ignore_eos),
            member,
        )


class Message(BaseModel):
    """One turn of a conversation."""

    model_config = ConfigDict(extra="forbid", strict=True)

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, BeforeValidator(_joined)]
    name: Ignored = None
    refusal: Annotated[Any, _only("")] = None
    annotations: Annotated[Any, _only([])] = None
    audio: Annotated[Any, _only()] = None
    function_call: Annotated[Any, _only()] = None
    tool_calls: Annotated[Any, _only([])] = None

    def as_turn(self) -> dict[str, str]:
        """As chat templates know it."""
        return {"role": "system" if self.role == "developer" else self.role, "content": self.content}


class ChatRequest(CompletionOptions):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Positive | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    tools: Annotated[Any, _only([])] = None
    tool_choice: Annotated[Any, _only("none", "auto")] = None
    parallel_tool_calls: Ignored = None
    functions: Annotated[Any, _only([])] = None
    function_call: Annotated[Any, _only("none", "auto")] = None
    response_format: Annotated[Any, _only({"type": "text"})] = None
    logprobs: Annotated[Any, _only(False)] = None
    top_logprobs: Annotated[Any, _only(0)] = None
    modalities: Annotated[Any, _only(["text"])] = None
    audio: Annotated[Any, _only()] = None
    prediction: Annotated[Any, _only()] = None
    reasoning_effort: Annotated[Any, _only()] = None
    verbosity: Annotated[Any, _only()] = None
    web_search_options: Annotated[Any, _only()] = None

    @model_validator(mode="after")
    def _one_limit(self) -> ChatRequest:
        if (
            None not in (self.max_tokens, self.max_completion_tokens)
            and self.max_tokens != self.max_completion_tokens
        ):
            raise _invalid("max_tokens and max_completion_tokens differ; give one of them")
        return self

    @property
    def token_limit(self) -> int | None:
        """Tokens of the answer, at most; ``max_tokens`` is the older name."""
        return self.max_completion_tokens or self.max_tokens


class TextRequest(CompletionOptions):
    """POST /v1/completions."""

    prompt: Annotated[str | list[int], BeforeValidator(_single)]
    echo: Annotated[Any, _only(False)] = None
    suffix: Annotated[Any, _only("")] = None
    logprobs: Annotated[Any, _only()] = None
    best_of: Annotated[Any, _only(1)] = None

    def ids(self, encode: Callable[[str], list[int]], vocab_size: int) -> list[int]:
        """The prompt's token ids. Raises ValueError for ids outside the vocabulary."""
        if isinstance(self.prompt, str):
            return encode(self.prompt)
        if max(self.prompt) >= vocab_size:
            raise ValueError(f"token {max(self.prompt)} is outside the vocabulary of {vocab_size}")
        return self.prompt
