"""Which members of a session stand on this LAN: those that answer at a local address. A datagram core.

Members tell each other their addresses before they report. Whoever has an address on one of our own networks is sent
checks there (``edge/check.py``, under the key of epoch 0, which no plan has): same-looking networks in two homes are
not taken for one, because only the member itself can answer. A site is named after the first of its members in the
charter's roster, so that whoever comes later finds the name without asking, and nobody has to change theirs.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kafila_agent.edge.candidate import IPNetwork, Reachable, candidate_addresses
from kafila_agent.edge.check import TRANSACTION_BYTES, CheckKind, PairKey
from kafila_proto.stun import Address

SENT_AFTER_S = (0.0, 0.1, 0.3, 0.7)  # the peer may hear a little later that we are a member
WAIT_S = 0.25  # for the answer to the last
EPOCH = 0


@dataclass(slots=True)
class _Peer:
    """``asked_until`` is None until its addresses are known."""

    key: PairKey
    dials: bool  # ourselves
    due: list[float] = field(default_factory=list)
    addresses: list[Address] = field(default_factory=list)
    asked_until: float | None = None
    is_near: bool = False
    transactions: set[bytes] = field(default_factory=set)


class SiteChecks:
    """For one session. ``networks``: what is on our own links."""

    def __init__(self, session_id: bytes, own: bytes, networks: Sequence[IPNetwork]):
        self._session_id = session_id
        self._own = own
        self._networks = networks
        self._roster: list[bytes] = [own]
        self._peers: dict[bytes, _Peer] = {}
        self._answers: deque[tuple[bytes, Address]] = deque()

    def set_roster(self, fingerprints: Iterable[bytes]) -> None:
        """The members, in the charter's order; those who are known stay so."""
        self._roster = list(fingerprints)
        for peer in self._roster:
            if peer != self._own and peer not in self._peers:
                key = PairKey.derive(self._session_id, EPOCH, self._own, peer)
                self._peers[peer] = _Peer(key, dials=self._own < peer)

    def add_candidates(self, member: bytes, candidates: Iterable[Reachable], now: float) -> None:
        """The addresses of a member before us: check those that are on our own networks. The first time counts.

        No addresses means that they are not known yet.
        """
        peer = self._peers.get(member)
        addresses = candidate_addresses(candidates)
        if not addresses or peer is None or peer not in self._before_us() or peer.asked_until is not None:
            return
        peer.addresses = [a for a in addresses if self._is_on_link(a[0])]
        peer.due = [now + delay for delay in SENT_AFTER_S] if peer.addresses else []
        peer.asked_until = peer.due[-1] + WAIT_S if peer.due else now

    def receive_datagram(self, data: bytes, source: Address, now: float) -> None:
        """Take a check; one that no member of the session made is ignored, and gets no answer."""
        peer = next((peer for peer in self._peers.values() if peer.key.pair_id == data[4:12]), None)
        check = None if peer is None else peer.key.parse(data)
        if peer is None or check is None or check.from_dialer == peer.dials:
            return
        if check.kind is CheckKind.ANSWER:
            peer.is_near |= check.transaction in peer.transactions
        elif self._is_on_link(source[0]):
            answer = peer.key.encode(
                CheckKind.ANSWER, check.transaction, from_dialer=peer.dials, size=check.size
            )
            self._answers.append((answer, source))

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, Address]]:
        """Answers, and the checks that are due."""
        out = list(self._answers)
        self._answers.clear()
        for peer in self._peers.values():
            if peer.due and peer.due[0] <= now:
                peer.due = [at for at in peer.due if at > now]
                for address in peer.addresses if not peer.is_near else ():
                    transaction = os.urandom(TRANSACTION_BYTES)
                    peer.transactions.add(transaction)
                    out.append(
                        (peer.key.encode(CheckKind.REQUEST, transaction, from_dialer=peer.dials), address)
                    )
        return out

    def get_timer(self) -> float | None:
        """When the next checks are due."""
        return min((peer.due[0] for peer in self._peers.values() if peer.due), default=None)

    def is_settled(self, now: float) -> bool:
        """Whether it is known of everyone before us in the roster whether they are near."""
        return all(
            peer.is_near or (peer.asked_until is not None and peer.asked_until <= now)
            for peer in self._before_us()
        )

    def site(self) -> str:
        """The name of our site, which tells nobody's address."""
        near = (f for f in self._roster if f == self._own or (f in self._peers and self._peers[f].is_near))
        return hashlib.sha256(self._session_id + next(near, self._own)).hexdigest()[:12]

    def _before_us(self) -> list[_Peer]:
        place = self._roster.index(self._own) if self._own in self._roster else 0
        return [self._peers[fingerprint] for fingerprint in self._roster[:place]]

    def _is_on_link(self, host: str) -> bool:
        address = ipaddress.ip_address(host)
        return any(address in network for network in self._networks if network.version == address.version)
