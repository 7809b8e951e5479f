"""A status as a document: the whole of it for whoever is this agent's user, and what the page at its API may show."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kafila_agent.view.causes import causes
from kafila_agent.view.sentences import guessing_line, measured_paths, network_lines, predicted_rate
from kafila_proto import agent_pb2 as pb

if TYPE_CHECKING:
    from google.protobuf.message import Message


def to_dict(message: Message) -> dict[str, Any]:
    """A message as plain JSON: enums by name, unset optionals null, ``x_json`` fields parsed under ``x``."""
    result: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is not None:
            result[field.name] = [to_dict(item) for item in value] if field.is_repeated else to_dict(value)
        elif field.enum_type is not None:
            result[field.name] = field.enum_type.values_by_number[value].name.lower()
        elif field.name.endswith("_json"):
            result[field.name.removesuffix("_json")] = json.loads(value) if value else None
        elif field.has_presence and not message.HasField(field.name):
            result[field.name] = None
        else:
            result[field.name] = value
    return result


def status_json(status: pb.Status) -> str:
    """One line of JSON."""
    return json.dumps(to_dict(status))


# Other users of this machine open the page too: no code, and no address.
_NOT_FOR_THE_PAGE = ("fingerprint", "rendezvous", "api_url", "metrics_url")


def page_document(status: pb.Status) -> dict[str, Any]:
    """What the page at the agent's API shows: the status without what is its user's alone, and what it means in words.

    Beside the status' own fields, ``session`` has ``predicted_tokens_per_s`` (null: unknown), ``lines``, sentences
    about its network and its guessing, and ``causes``, what holds it back, each with its ``next_step``.
    """
    shown = pb.Status()
    shown.CopyFrom(status)
    shown.session.ClearField("code")
    session = shown.session
    document = {name: value for name, value in to_dict(shown).items() if name not in _NOT_FOR_THE_PAGE}
    about = {name: value for name, value in document["session"].items() if name not in ("code", "fleet")}
    about["predicted_tokens_per_s"] = predicted_rate(session)
    about["lines"] = _lines(shown)
    about["causes"] = [{"finding": finding, "next_step": next_step} for finding, next_step in causes(session)]
    return document | {"session": about}


def _lines(status: pb.Status) -> list[str]:
    session = status.session
    lines = []
    if session.plan_json and "ring" in (plan := json.loads(session.plan_json)):
        fleet = json.loads(session.fleet_json)
        lines += network_lines(plan, measured_paths(session), fleet, status.name)
    if session.measured.HasField("tokens_per_s"):
        lines.append(guessing_line(session.measured.guessing))
    return lines
