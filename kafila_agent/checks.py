"""What a session needs of this machine, looked at step by step; each finding with its next step.

Only what costs a second or two and disturbs no session at work; ``kafila-ctl probe`` measures speed.
"""

from __future__ import annotations

import asyncio
import datetime
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from cryptography import x509

from kafila_agent.machine import Machine
from kafila_agent.nat.words import describe_network, no_udp
from kafila_agent.session.measuring import measure_network
from kafila_agent.view.figures import size
from kafila_proto import agent_pb2 as pb

OK, DOUBTFUL, BAD, UNKNOWN = pb.Check.OK, pb.Check.DOUBTFUL, pb.Check.BAD, pb.Check.UNKNOWN
_LEAST_DISK_BYTES = 100 << 20  # an identity, digests and a log
_LEAST_ROOM_BYTES = 1 << 30


async def examine(machine: Machine, model: str) -> list[pb.Check]:
    """Every check, in the order in which they should be put right."""
    return [
        _rendezvous(machine),
        *await _network(machine),
        clock(machine.identity.certificate_der, datetime.datetime.now(datetime.UTC)),
        disk(machine.config.state_dir),
        *await asyncio.to_thread(_compute, machine),
        await asyncio.to_thread(_model, machine, model),
    ]


def _rendezvous(machine: Machine) -> pb.Check:
    link = machine.link
    if link.state == "attached" and link.attachment is not None:
        finding = f"attached to {link.address}, which runs Kafila {link.attachment.version}"
        return _check("rendezvous (TCP)", OK, finding)
    return _check(
        "rendezvous (TCP)",
        BAD,
        link.problem or f"not attached to {link.address} yet",
        "see that the rendezvous runs and that its TCP port is let through, here and there",
    )


async def _network(machine: Machine) -> list[pb.Check]:
    attachment = machine.link.attachment
    if attachment is None:
        return [
            _check("rendezvous (UDP)", UNKNOWN, "not looked at without the rendezvous"),
            _check("NAT", UNKNOWN, "not looked at without the rendezvous"),
        ]
    reach = await measure_network(machine)
    if not reach.udp:
        return [
            _check("rendezvous (UDP)", BAD, "no answer by UDP", no_udp(attachment)),
            _check("NAT", UNKNOWN, "not looked at without UDP"),
        ]
    first, *more = describe_network(reach, attachment)
    rtt = f", {reach.rendezvous_rtt_s * 1e3:.0f} ms away" if reach.rendezvous_rtt_s is not None else ""
    return [
        _check(
            "rendezvous (UDP)",
            DOUBTFUL if more else OK,
            f"answers at UDP port {attachment.udp_port}{rtt}",
            " ".join(more),
        ),
        _check("NAT", OK, first),
    ]


def clock(certificate_der: bytes, now: datetime.datetime) -> pb.Check:
    """Certificates are looked at with this machine's clock: it need not be exact, but not years off."""
    certificate = x509.load_der_x509_certificate(certificate_der)
    if now < certificate.not_valid_before_utc:
        made = f"{certificate.not_valid_before_utc:%Y-%m-%d}"
        return _check(
            "clock",
            BAD,
            f"it says {now:%Y-%m-%d %H:%M} UTC, which is before this agent's certificate was made ({made})",
            "set the clock, and let it be set from the network (timedatectl set-ntp true)",
        )
    return _check("clock", OK, f"{now:%Y-%m-%d %H:%M:%S} UTC")


def disk(state_dir: Path) -> pb.Check:
    """Identity, pins and digests are kept there."""
    free = shutil.disk_usage(state_dir).free
    if not os.access(state_dir, os.W_OK):
        return _check(
            "disk", BAD, f"{state_dir} cannot be written", "let the user that the agent runs as write there"
        )
    if free < _LEAST_DISK_BYTES:
        return _check("disk", DOUBTFUL, f"{size(free)} free at {state_dir}", "make room there")
    return _check("disk", OK, f"{size(free)} free at {state_dir}")


def _compute(machine: Machine) -> list[pb.Check]:
    from kafila_agent.kernels.library import native_kernels
    from kafila_agent.probe.room import measure_room_bytes

    config = machine.config
    room = measure_room_bytes(config.device, limit_bytes=config.memory_limit_bytes)
    small = room < _LEAST_ROOM_BYTES
    return [
        _check(
            "room",
            DOUBTFUL if small else OK,
            f"{size(room)} for weights and KV cache on {config.device}",
            "close what holds memory on this machine, or raise --memory" if small else "",
        ),
        _gpu(config.device),
        *([kernels(native_kernels() is not None)] if config.device == "cpu" else []),
    ]


def _gpu(device: str) -> pb.Check:
    import torch

    seen = [f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(torch.cuda.device_count())]
    seen += ["mps"] if torch.backends.mps.is_available() else []
    if device != "cpu":
        return _check("GPU", OK, f"computes on {device}; this machine has {', '.join(seen)}")
    if seen:
        kind = seen[0].partition(":")[0]
        return _check(
            "GPU",
            DOUBTFUL,
            f"there is {', '.join(seen)}, and it is not used",
            f"start the agent with --device {kind}",
        )
    why = "this torch is built without CUDA" if torch.version.cuda is None else "no driver or device is seen"
    return _check("GPU", OK, f"none: computes on the processor ({why})")


def kernels(are_native: bool) -> pb.Check:
    """Members that compute by unlike kernels round unlike: their split is then not to the bit what one gives alone."""
    if are_native:
        return _check("kernels", OK, "compiled for this processor")
    return _check(
        "kernels",
        DOUBTFUL,
        "torch computes alone: slower, and in bfloat16 not to the bit what members with compiled kernels do",
        "install a C compiler (apt install gcc) and start the agent anew",
    )


def _model(machine: Machine, model: str) -> pb.Check:
    from kafila_agent.model.errors import ModelError
    from kafila_agent.model.locate import locate_model
    from kafila_agent.model.manifest import read_manifest

    config = machine.config
    if not model:
        found = ", ".join(sorted(_lying_in(config.model_dirs))) or "nothing"
        where = ", ".join(str(directory) for directory in config.model_dirs)
        return _check(
            "model",
            UNKNOWN,
            f"none was named; in {where}: {found}",
            "name one: kafila-ctl doctor --model MODEL",
        )
    try:
        path = locate_model(model, config.model_dirs)
        manifest = read_manifest(path, digest_cache=config.digest_cache)
    except ModelError as error:
        return _check(
            "model", BAD, str(error), "put the host's files there, or start the agent with --model-dir"
        )
    return _check("model", OK, f"{manifest.name} is whole and readable at {path}")


def _lying_in(directories: tuple[Path, ...]) -> Iterator[str]:
    for directory in directories:
        if directory.is_dir():
            yield from (path.name for path in directory.iterdir() if not path.name.startswith("."))


def _check(name: str, verdict: pb.Check.Verdict, finding: str, next_step: str = "") -> pb.Check:
    return pb.Check(name=name, verdict=verdict, finding=finding, next_step=next_step)
