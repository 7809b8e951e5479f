"""What the network lets through, in words, and what would make it better."""

from __future__ import annotations

from collections.abc import Iterator

from kafila_agent.control.link import Attachment
from kafila_agent.nat.reachability import Reachability
from kafila_planner.facts import MemberFacts
from kafila_planner.nat import describe_nat


def describe_network(reach: Reachability, attachment: Attachment | None) -> list[str]:
    """Sentences, each with the next step where there is one."""
    if attachment is None:
        return ["The network is unknown: this machine is not attached to the rendezvous."]
    if not reach.udp:
        sentence = no_udp(attachment)
        return [f"{sentence[0].upper()}{sentence[1:]}."]
    return list(_sentences(reach, attachment))


def no_udp(attachment: Attachment | None) -> str:
    """Why this machine cannot share a model with others, and what to open."""
    host, port = (attachment.host, attachment.udp_port) if attachment else ("the rendezvous", 0)
    ports = f" ports {port} and {port + 1}" if port else ""
    return (
        f"no UDP passes between this machine and {host}: let UDP out to {host}{ports} in this machine's and its "
        "network's firewall and let the answers in, or use another network"
    )


def _sentences(reach: Reachability, attachment: Attachment) -> Iterator[str]:
    facts = MemberFacts(
        "", mapping=reach.mapping, filtering=reach.filtering, nat=reach.nat, ipv4=reach.ipv4, ipv6=reach.ipv6
    )
    yield describe_nat(facts)
    if reach.second_port is False:
        yield (
            f"UDP port {attachment.udp_port + 1} of {attachment.host} does not answer, so this NAT cannot be told "
            "from a stricter one: open that port at the rendezvous."
        )
