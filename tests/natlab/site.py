"""What stands between a member and the others: the parameters of one site of the laboratory."""

from __future__ import annotations

from dataclasses import dataclass, field

# name: (mapping, filtering); a mapping of None is no NAT at all. Filtering looks at nothing ("endpoint"), at the
# sender's address, or at its address and port.
CLASSES: dict[str, tuple[str | None, str]] = {
    "permissive": ("endpoint", "endpoint"),
    "addrfilter": ("endpoint", "address"),
    "ordinary": ("endpoint", "port"),
    "restrictive": ("port", "port"),
    "sym_adf": ("port", "address"),
    "sym_eif": ("port", "endpoint"),
    "blocked": ("endpoint", "port"),  # and no UDP passes
    "public": (None, "endpoint"),
    "firewall": (None, "port"),
}


@dataclass
class Site:
    """``number`` gives the site its networks; ``behind`` names the site whose NAT this one is behind."""

    name: str
    number: int
    kind: str
    rtt_ms: float = 0.0  # to the rendezvous and back
    jitter_ms: float = 0.0  # at most so much more, evenly spread, in order
    loss_percent: float = 0.0  # each way
    up_mbit_s: float = 0.0  # 0: as fast as the machine
    down_mbit_s: float = 0.0
    mapping_life_s: int = 0  # of an idle UDP mapping; 0: the kernel's 30, 120 once answered
    hairpins: bool = False
    keeps_port: bool = False
    families: tuple[int, ...] = (4,)
    ipv6_firewall: bool = True
    behind: str = ""
    extra_rule: str = ""  # of nftables, ahead of those that forward
    hosts: list[str] = field(default_factory=list)

    @property
    def has_nat(self) -> bool:
        """Whether the site has a router of its own."""
        return CLASSES[self.kind][0] is not None

    @property
    def maps_alike(self) -> bool:
        """Whether the mapping is endpoint-independent."""
        return CLASSES[self.kind][0] == "endpoint"

    @property
    def filtering(self) -> str:
        """What of a sender the filter looks at."""
        return CLASSES[self.kind][1]

    @property
    def blocks_udp(self) -> bool:
        """Whether no UDP passes."""
        return self.kind == "blocked"
