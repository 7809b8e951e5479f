"""Requests as OpenAI's API defines them, plus the sampling extras that other servers share.

An argument either works, or is known to be harmless and ignored, or is refused by name: never silence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from kafila_agent.api.messages import (
    Ignored,
    Message,
    NamedTool,
    PlainFormat,
    SchemaFormat,
    Tool,
    invalid,
    only,
)
from kafila_agent.head.sampler import Sampling

MAX_STOPS = 16
MAX_CHOICES = 16
MAX_TOP_LOGPROBS = 20
MAX_TOOLS = 128


def _single(prompt: Any) -> Any:
    """A completion's prompt: a string or token ids, possibly the only one of a list."""
    if isinstance(prompt, list) and prompt and not all(type(token) is int for token in prompt):
        if len(prompt) > 1:
            raise invalid("one prompt a request is supported")
        prompt = prompt[0]
    ids = isinstance(prompt, list) and all(type(token) is int and token >= 0 for token in prompt)
    if not prompt or not (isinstance(prompt, str) or ids):
        raise invalid("expected a text or a list of token ids, not empty")
    return prompt


def _stops(stop: Any) -> Any:
    return [stop] if isinstance(stop, str) else stop


def _token_ids(biases: dict[str, float] | None) -> dict[str, float] | None:
    if not all(key.isascii() and key.isdigit() for key in biases or ()):
        raise invalid("keys must be token ids")
    return biases


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

    # Kafila's own: whether to guess ahead, which changes when tokens come and nothing else.
    speculation: bool | None = None

    # They change nothing in the answer.
    user: Ignored = None
    metadata: Ignored = None
    store: Ignored = None
    service_tier: Ignored = None
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None

    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None

    @model_validator(mode="after")
    def _usage_needs_a_stream(self) -> CompletionOptions:
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options is only allowed when stream is true", "stream_options")
        return self

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with the token counts."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def token_limit(self) -> int | None:
        """Tokens of the answer, at most."""
        return self.max_tokens

    @property
    def likeliest(self) -> int | None:
        """Of how many of the likeliest tokens, beside the one taken, the probability is wanted; None: of none."""
        return None

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
            logit_bias=biases,
            logprobs=self.likeliest,
            **{name: value for name, value in given.items() if value is not None},
        )


class ChatRequest(CompletionOptions):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Positive | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    response_format: Annotated[PlainFormat | SchemaFormat, Field(discriminator="type")] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    reasoning_effort: str | None = None
    functions: Annotated[Any, only([])] = None
    function_call: Annotated[Any, only("none", "auto")] = None
    modalities: Annotated[Any, only(["text"])] = None
    audio: Annotated[Any, only()] = None
    prediction: Annotated[Any, only()] = None
    verbosity: Annotated[Any, only()] = None
    web_search_options: Annotated[Any, only()] = None

    @model_validator(mode="after")
    def _one_limit(self) -> ChatRequest:
        if (
            None not in (self.max_tokens, self.max_completion_tokens)
            and self.max_tokens != self.max_completion_tokens
        ):
            raise invalid("max_tokens and max_completion_tokens differ; give one of them", "max_tokens")
        return self

    @model_validator(mode="after")
    def _consistent(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise invalid("top_logprobs is only allowed when logprobs is true", "top_logprobs")
        if self.tool_choice not in (None, "none", "auto") and not self.tools:
            raise invalid("tool_choice is only allowed with tools", "tool_choice")
        if isinstance(self.tool_choice, NamedTool) and not self.offered_tools:
            name = self.tool_choice.function.name
            raise invalid(f"tool_choice names '{name}', which is not among the tools", "tool_choice")
        if self.is_formed and self.ignore_eos:
            raise invalid("ignore_eos and an answer of a given form contradict each other", "ignore_eos")
        if self.response_format is not None and self.response_format.type != "text" and self.offered_tools:
            raise invalid(
                "response_format and tools together are not supported; give one of them", "response_format"
            )
        return self

    @property
    def likeliest(self) -> int | None:
        """See CompletionOptions."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def offered_tools(self) -> list[Tool]:
        """Those that may be called: all of them, the one that must be, or none."""
        if self.tool_choice == "none":
            return []
        tools = self.tools or []
        if isinstance(self.tool_choice, NamedTool):
            return [tool for tool in tools if tool.function.name == self.tool_choice.function.name]
        return tools

    @property
    def must_call(self) -> bool:
        """Whether plain text is no answer."""
        return self.tool_choice == "required" or isinstance(self.tool_choice, NamedTool)

    @property
    def is_formed(self) -> bool:
        """Whether not every text is an answer."""
        wants_json = self.response_format is not None and self.response_format.type != "text"
        return wants_json or self.must_call or any(tool.function.strict for tool in self.offered_tools)

    @property
    def token_limit(self) -> int | None:
        """Tokens of the answer, at most; ``max_tokens`` is the older name."""
        return self.max_completion_tokens or self.max_tokens


class TextRequest(CompletionOptions):
    """POST /v1/completions."""

    prompt: Annotated[str | list[int], BeforeValidator(_single)]
    echo: Annotated[Any, only(False)] = None
    suffix: Annotated[Any, only("")] = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None

    @model_validator(mode="after")
    def _all_are_shown(self) -> TextRequest:
        if self.best_of not in (None, self.n or 1):
            raise invalid("best_of is not supported but for n itself: every answer is shown", "best_of")
        return self

    @property
    def likeliest(self) -> int | None:
        """See CompletionOptions."""
        return self.logprobs

    def ids(self, encode: Callable[[str], list[int]], vocab_size: int) -> list[int]:
        """The prompt's token ids. Raises ValueError for ids outside the vocabulary."""
        if isinstance(self.prompt, str):
            return encode(self.prompt)
        if max(self.prompt) >= vocab_size:
            raise ValueError(f"token {max(self.prompt)} is outside the vocabulary of {vocab_size}")
        return self.prompt
