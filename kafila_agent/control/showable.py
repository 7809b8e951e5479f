"""What the rendezvous passes on from others, made fit to be kept and shown."""

from __future__ import annotations

from kafila_proto.names import printable
from kafila_proto.rendezvous_pb2 import MemberState, ToAgent

MAX_UPDATE_BYTES = 64 << 10  # kept for each member


def make_showable(message: ToAgent) -> bool:
    """Take out of ``message`` what could drive a terminal; whether it may be kept."""
    match message.WhichOneof("message"):
        case "problem":
            message.problem.detail = printable(message.problem.detail)
        case "closed":
            message.closed.reason = printable(message.closed.reason)
        case "member":
            progress = message.member.progress
            progress.detail = printable(progress.detail)
            if progress.state not in MemberState.values():
                progress.state = MemberState.MEMBER_STATE_UNSPECIFIED
            for edge in progress.edges:
                edge.path = printable(edge.path)
            return message.ByteSize() <= MAX_UPDATE_BYTES
    return True
