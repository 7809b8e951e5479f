"""``kafila-ctl chat``: talk to the session's model, on any of its members; also works piped."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import httpx2
import typer

from kafila_agent.api_key import ApiKeyError, read_api_key
from kafila_agent.ctl.client import local_agent
from kafila_agent.ctl.completions import ApiError, served_model, stream_chat
from kafila_agent.ctl.exit_status import FAILURE, INTERRUPTED, NOT_FOUND, USAGE, fail
from kafila_agent.ctl.options import StateDir
from kafila_proto import agent_pb2 as pb
from kafila_proto.local_http import is_loopback

_HELP = "Type a message. /reset forgets the conversation; Ctrl-C stops an answer; /quit or Ctrl-D ends."
_OPENAI_KEY = "OPENAI_API_KEY"


def chat(
    base_url: Annotated[
        str | None,
        typer.Option(
            envvar="OPENAI_BASE_URL",
            help="Another API than this machine's agent's; its key comes from --api-key-file or OPENAI_API_KEY.",
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(help="The agent's API key, if it asks for one; or KAFILA_API_KEY.")
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens an answer may have; otherwise all that the context leaves."),
    ] = None,
    temperature: Annotated[
        float, typer.Option(min=0.0, max=2.0, help="0 is the likeliest answer, always the same.")
    ] = 0.0,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Show tokens/s and more after each answer.")
    ] = False,
    *,
    state_dir: StateDir,
) -> None:
    """Chat with the model. Reads standard input to its end when piped."""
    try:
        api_key = read_api_key(api_key_file)
    except ApiKeyError as error:
        fail(USAGE, str(error))
    if base_url is None:
        base_url = _local_api(state_dir)
    else:
        if api_key_file is None and not is_loopback(urlsplit(base_url).hostname or ""):
            api_key = None  # the agent's is nobody else's business
        api_key = api_key or os.environ.get(_OPENAI_KEY)
        typer.echo(f"Using the API at {base_url}", err=True)
    try:
        model = served_model(base_url, api_key)
        talk = _Talk(
            base_url, model, api_key, {"max_tokens": max_tokens, "temperature": temperature}, verbose
        )
        if sys.stdin.isatty():
            _converse(talk)
        else:
            _answer_piped(talk)
    except ApiError as error:
        fail(FAILURE, str(error))


def _local_api(state_dir: Path) -> str:
    with local_agent(state_dir) as agent:
        status = agent.GetStatus(pb.StatusRequest())
    if status.session.state != pb.SessionStatus.SERVING:
        fail(NOT_FOUND, "no session serves on this machine yet: see `kafila-ctl session status`")
    return status.api_url


@dataclass
class _Talk:
    """One conversation: where it is held, how it is answered, and what has been said."""

    base_url: str
    model: str
    api_key: str | None
    options: dict[str, Any]
    verbose: bool
    messages: list[dict[str, str]] = field(default_factory=list)

    def ask(self, text: str) -> bool:
        """Print the answer as it comes; False if Ctrl-C stopped it, and then what had come stays said.

        Raises ApiError; what was asked then stays out of the conversation, so that the next question is no sequel.
        """
        asked = [*self.messages, {"role": "user", "content": text}]
        parts: list[str] = []
        stopped = False
        made: dict[str, Any] = {}
        try:
            for chunk in stream_chat(self.base_url, self.model, asked, self.api_key, **self.options):
                for choice in chunk["choices"]:
                    parts.append(choice["delta"].get("content") or "")  # first: Ctrl-C may come at any time
                    _show(choice["delta"])
                made = made | chunk.get("kafila", {}) | (chunk.get("usage") or {})
        except KeyboardInterrupt:
            stopped = True
        except httpx2.HTTPError as error:
            raise ApiError(f"the API at {self.base_url} went away: {error}") from error
        sys.stdout.write("\n")
        sys.stdout.flush()
        self.messages = [*asked, {"role": "assistant", "content": "".join(parts)}]
        if self.verbose and made:
            typer.echo(_measures(made), err=True)
        return not stopped


def _answer_piped(talk: _Talk) -> None:
    try:
        text = sys.stdin.buffer.read().decode().strip()
    except UnicodeDecodeError as error:
        fail(USAGE, f"what was piped in is not UTF-8 text: {error.reason} at byte {error.start}")
    if not text:
        fail(USAGE, "nothing was asked: pipe a question in, as in `echo Why? | kafila-ctl chat`")
    if not talk.ask(text):
        raise typer.Exit(INTERRUPTED)


def _converse(talk: _Talk) -> None:
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  input() then edits its line and remembers earlier ones
    typer.echo(_HELP, err=True)
    while True:
        try:
            text = input("> ").strip()
        except KeyboardInterrupt:
            typer.echo()  # the line is dropped, as a shell does
            continue
        except EOFError:
            typer.echo()
            return
        if text == "/quit":
            return
        if text == "/reset":
            talk.messages = []
        elif text:
            try:
                talk.ask(text)
            except ApiError as error:
                typer.echo(f"kafila-ctl: {error}", err=True)


def _show(delta: dict[str, Any]) -> None:
    """Print what a delta adds."""
    if thought := delta.get("reasoning_content"):
        typer.secho(thought, dim=True, nl=False, err=True)
    sys.stdout.write(delta.get("content") or "")
    sys.stdout.flush()


def _measures(made: dict[str, Any]) -> str:
    """One line of what is known of how the answer was made."""
    known = [
        ("completion_tokens", "{} tokens"),
        ("tokens_per_s", "{:.1f} tokens/s"),
        ("ttft_s", "first after {:.2f} s"),
        ("network_share", "network share {:.2f}"),
    ]
    shown = [form.format(made[name]) for name, form in known if made.get(name) is not None]
    return ", ".join(shown) + (f", by {' → '.join(made['members'])}" if made.get("members") else "")
