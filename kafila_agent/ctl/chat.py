"""``kafila-ctl chat``: talk to the session's model; also works piped."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import httpx2
import typer

from kafila_agent.api_key import ApiKeyError, read_api_key
from kafila_agent.ctl.client import local_agent
from kafila_agent.ctl.completions import ApiError, stream_chat
from kafila_agent.ctl.exit_status import FAILURE, NOT_FOUND, USAGE, fail
from kafila_agent.ctl.options import StateDir
from kafila_proto import agent_pb2 as pb

_HELP = "Type a message. /reset forgets the conversation, /quit (or Ctrl-D) ends; Ctrl-C stops an answer."


def chat(
    api_key_file: Annotated[
        Path | None, typer.Option(help="The agent's API key, if it asks for one; or KAFILA_API_KEY.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens an answer may have.")] = 1024,
    temperature: Annotated[
        float, typer.Option(min=0.0, max=2.0, help="0 is the likeliest answer, always the same.")
    ] = 0.0,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Show tokens/s after each answer.")
    ] = False,
    *,
    state_dir: StateDir,
) -> None:
    """Chat with the model. Reads standard input to its end when piped."""
    with local_agent(state_dir) as agent:
        status = agent.GetStatus(pb.StatusRequest())
    if status.session.state != pb.SessionStatus.SERVING:
        fail(NOT_FOUND, "no session serves on this machine yet: see `kafila-ctl session status`")
    try:
        api_key = read_api_key(api_key_file)
    except ApiKeyError as error:
        fail(USAGE, str(error))
    options = {"max_tokens": max_tokens, "temperature": temperature, "api_key": api_key}
    if not sys.stdin.isatty():
        try:
            _answer(status, [{"role": "user", "content": sys.stdin.read()}], options, verbose)
        except ApiError as error:
            fail(FAILURE, str(error))
        return
    typer.echo(_HELP, err=True)
    _converse(status, options, verbose)


def _converse(status: pb.Status, options: dict, verbose: bool) -> None:
    messages: list[dict[str, str]] = []
    while True:
        try:
            text = input("> ").strip()
        except (EOFError, KeyboardInterrupt):
            typer.echo()
            return
        if text == "/quit":
            return
        if text == "/reset":
            messages.clear()
            continue
        if not text:
            continue
        messages.append({"role": "user", "content": text})
        try:
            messages.append({"role": "assistant", "content": _answer(status, messages, options, verbose)})
        except ApiError as error:
            # What was asked stays out of the conversation, so that the next question is not its sequel.
            messages.pop()
            typer.echo(f"kafila-ctl: {error}", err=True)


def _answer(status: pb.Status, messages: list[dict[str, str]], options: dict, verbose: bool) -> str:
    """Print the answer as it comes and return it; Ctrl-C keeps what had come."""
    parts: list[str] = []
    started = time.monotonic()
    tokens = 0
    try:
        for chunk in stream_chat(status.api_url, status.session.model, messages, **options):
            for choice in chunk["choices"]:
                text = choice["delta"].get("content") or ""
                parts.append(text)
                sys.stdout.write(text)
                sys.stdout.flush()
            if chunk.get("usage"):
                tokens = chunk["usage"]["completion_tokens"]
    except KeyboardInterrupt:
        pass
    except httpx2.HTTPError as error:
        raise ApiError(f"the agent's API at {status.api_url} went away: {error}") from error
    sys.stdout.write("\n")
    if verbose and tokens:
        typer.echo(f"{tokens} tokens, {tokens / (time.monotonic() - started):.1f} tokens/s", err=True)
    return "".join(parts)
