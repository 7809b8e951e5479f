"""What a conversation is made of, as OpenAI's API has it: messages, tools and their calls, forms of answers."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

Ignored = Any


def only(*neutral: Any) -> AfterValidator:
    """An argument that is not supported, of which only the values that ask for nothing are taken."""

    def check(value: Any) -> Any:
        if any(type(value) is type(known) and value == known for known in (None, *neutral)):
            return value
        raise PydanticCustomError("unsupported", "this server does not support it")

    return AfterValidator(check)


def invalid(message: str, param: str | None = None) -> PydanticCustomError:
    """A refusal in our own words; ``param``: the argument, where it is not the one being checked."""
    return PydanticCustomError("invalid", "{message}", {"message": message, "param": param})


def _joined(content: Any) -> Any:
    """A message's content: a string, or text parts put together."""
    if not isinstance(content, list):
        return content
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise invalid("only parts of type 'text' are supported")
    return "".join(part["text"] for part in content)


class CalledFunction(BaseModel):
    """What a model called, and with which arguments: one JSON object, as text."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    arguments: str


class ToolCall(BaseModel):
    """One call of an earlier answer."""

    model_config = ConfigDict(extra="forbid", strict=True)

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    index: Ignored = None

    def as_turn(self) -> dict[str, Any]:
        """As chat templates know it: with the arguments themselves. Raises ValueError if they are no JSON object."""
        try:
            arguments = json.loads(self.function.arguments or "{}")
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
        if not isinstance(arguments, dict):
            raise ValueError("not an object")
        function = {"name": self.function.name, "arguments": arguments}
        return {"id": self.id, "type": "function", "function": function}


class Message(BaseModel):
    """One turn of a conversation."""

    model_config = ConfigDict(extra="forbid", strict=True)

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str | None, BeforeValidator(_joined)] = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    name: Ignored = None
    refusal: Annotated[Any, only("")] = None
    annotations: Annotated[Any, only([])] = None
    audio: Annotated[Any, only()] = None
    function_call: Annotated[Any, only()] = None

    @model_validator(mode="after")
    def _says_something(self) -> Message:
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise invalid("a message without content")
        if self.tool_calls and self.role != "assistant":
            raise invalid("only the assistant calls tools")
        if self.role == "tool" and self.tool_call_id is None:
            raise invalid("a tool's message needs the tool_call_id that it answers")
        return self

    def as_turn(self) -> dict[str, Any]:
        """As chat templates know it. Raises ValueError for arguments that are no JSON object."""
        turn: dict[str, Any] = {"role": "system" if self.role == "developer" else self.role}
        turn["content"] = self.content or ""
        if self.reasoning_content:
            turn["reasoning_content"] = self.reasoning_content
        if self.tool_calls:
            turn["tool_calls"] = [call.as_turn() for call in self.tool_calls]
        if self.tool_call_id is not None:
            turn["tool_call_id"] = self.tool_call_id
        return turn


class Function(BaseModel):
    """A function that the model may call. ``parameters``: a JSON schema."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(BaseModel):
    """The one kind that there is."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["function"]
    function: Function

    def as_template_knows(self) -> dict[str, Any]:
        """Without what says nothing to a model."""
        return {
            "type": "function",
            "function": self.function.model_dump(exclude_none=True, exclude={"strict"}),
        }


class NamedFunction(BaseModel):
    """A function by its name."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str


class NamedTool(BaseModel):
    """The tool that must be called."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["function"]
    function: NamedFunction


class JsonSchema(BaseModel):
    """What an answer is to look like. It is kept to whether ``strict`` or not."""

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True)

    name: str
    description: Ignored = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class PlainFormat(BaseModel):
    """Text, or any JSON object."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["text", "json_object"]


class SchemaFormat(BaseModel):
    """JSON of a schema."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["json_schema"]
    json_schema: JsonSchema
