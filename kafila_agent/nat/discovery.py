"""What the NAT in front of one socket does (RFC 4787), from what a reflector answers (RFC 5780). A datagram core.

Every question goes out at once, three times, and counts from there; the RFC's own retransmission would take 39 s to a
negative. While nothing at all is answered, everything is asked anew: a line may be down for a second or two. Three
sockets ask: MAIN, whose mapping is wanted; FRESH, which talks to one address and port alone, so that nothing else may
answer it unless the NAT lets strangers in; and STRANGER, to whom neither of the two ever sends.

    MAIN   -> first port, second port, second address    seen alike everywhere?                      mapping
    FRESH  -> first port: answer from there,
              from the second port, from the second address                                          filtering
    MAIN  <-> FRESH, each at the other's outer address   both ask, as two members would              hairpin
    STRANGER -> FRESH, at its outer address              lets in what the outermost NAT sends back?  hairpin_open

The second address is the reflector's own, which it names in its first answer, or that of any other STUN server. An
answer that does not come means something only if its like came back: a question is *silent* when most of those sent
beside it, from the same socket, were answered; else it is unknown.
"""

from __future__ import annotations

import enum
import ipaddress
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from kafila_planner.facts import Behaviour
from kafila_proto import stun

SENT_AFTER_S = (0.0, 0.15, 0.35)
LEAST_WAIT_S = 0.4  # for an answer to the last
WAIT_RTTS = 3
ASK_ANEW_S = (1.2, 2.4)  # with no answer to anything so far
BLOCKED_S = 3.6  # and by then, UDP does not pass


class Local(enum.Enum):
    """Which of the sockets."""

    MAIN = "main"
    FRESH = "fresh"
    STRANGER = "stranger"


class Question(enum.StrEnum):
    """What is asked."""

    FIRST_PORT = "main socket, first port"
    SECOND_PORT = "main socket, second port"
    SECOND_ADDRESS = "main socket, second address"
    FRESH = "fresh socket, answer from where it asked"
    FROM_SECOND_PORT = "fresh socket, answer from the second port"
    FROM_SECOND_ADDRESS = "fresh socket, answer from the second address"
    HAIRPIN = "main socket, at the fresh one's outer address"
    HAIRPIN_BACK = "fresh socket, at the main one's outer address"
    HAIRPIN_OPEN = "strange socket, at the fresh one's outer address"


# Asked three times whether or not the first is answered: how many come back tells how much silence is worth.
_MEASURES = (Question.FIRST_PORT, Question.FRESH)
_HAIRPINS = (Question.HAIRPIN, Question.HAIRPIN_BACK, Question.HAIRPIN_OPEN)


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One datagram, the socket to send it from, and where to."""

    local: Local
    data: bytes
    target: stun.Address


@dataclass(frozen=True, slots=True)
class Discovered:
    """None is unknown. ``mapped`` is where the reflector sees the main socket: None where nothing was answered.

    ``second_port``: whether the reflector's second port answers. ``translated``: whether there is a NAT.
    """

    mapped: stun.Address | None
    translated: bool = False
    mapping: Behaviour | None = None
    filtering: Behaviour | None = None
    hairpin: bool | None = None
    second_port: bool | None = None
    hairpin_open: bool | None = None


@dataclass(slots=True)
class _Asked:
    """One question to one target. ``mapped``: what its answer said."""

    question: Question
    local: Local
    target: stun.Address
    change: int | None
    due: list[float]
    sent: dict[bytes, float] = field(default_factory=dict)
    answers: int = 0
    refused: bool = False
    given_up: bool = False
    mapped: stun.Address | None = None

    @property
    def is_answered(self) -> bool:
        return self.answers > 0

    @property
    def is_settled(self) -> bool:
        return self.is_answered or self.refused or self.given_up


class Discovery:
    """``own_hosts``: this machine's addresses; ``others``: STUN servers besides the rendezvous."""

    def __init__(
        self,
        reflector: stun.Address,
        second_port: int,
        *,
        own_hosts: Collection[str],
        now: float,
        others: Sequence[stun.Address] = (),
    ):
        self._reflector = reflector
        self._own_hosts = own_hosts
        self._began_at = now
        self._anew_at = [now + delay for delay in ASK_ANEW_S]
        self._rtt_s = 0.0
        self._asked: list[_Asked] = []
        self._ask(Question.FIRST_PORT, Local.MAIN, reflector, now, 0)
        self._ask(Question.SECOND_PORT, Local.MAIN, (reflector[0], second_port), now)
        for other in others:
            self._ask(Question.SECOND_ADDRESS, Local.MAIN, other, now)
        self._ask(Question.FRESH, Local.FRESH, reflector, now)
        self._ask(Question.FROM_SECOND_PORT, Local.FRESH, reflector, now, stun.CHANGE_PORT)
        self._ask(Question.FROM_SECOND_ADDRESS, Local.FRESH, reflector, now, stun.CHANGE_ADDRESS)

    # Datagrams

    def receive_datagram(self, local: Local, data: bytes, source: stun.Address, now: float) -> None:
        """Take what came to a socket; anything but an answer to a question, or our own hairpinned, is ignored."""
        try:
            message = stun.parse_stun(data)
        except stun.StunError:
            return
        for asked in self._asked:
            if message.transaction_id in asked.sent:
                self._take(asked, local, message, source, now)
                return

    def datagrams_to_send(self, now: float) -> list[Outgoing]:
        """The questions that are due."""
        out = []
        for asked in self._asked:
            if asked.due and asked.due[0] <= now:
                asked.due = [at for at in asked.due if at > now]
                data, transaction = stun.encode_request(asked.change)
                asked.sent[transaction] = now
                out.append(Outgoing(asked.local, data, asked.target))
        return out

    def get_timer(self) -> float | None:
        """When something is due, or a silence is long enough; None when all is known that can be."""
        if self.is_over:
            return None
        times = [asked.due[0] for asked in self._asked if asked.due]
        times += self._anew_at[:1] if not self.is_answered else []
        times += [self._silence_at(asked) for asked in self._asked if not asked.is_settled and not asked.due]
        return min(times)

    def handle_timer(self, now: float) -> None:
        """Take a silence that is long enough for an answer, or ask anew."""
        if not self.is_answered and self._anew_at and self._anew_at[0] <= now:
            self._anew_at = [at for at in self._anew_at if at > now]
            for asked in self._asked:
                asked.due = [now + delay for delay in SENT_AFTER_S]
        for asked in self._asked:
            if not asked.is_settled and not asked.due and self._silence_at(asked) <= now:
                asked.given_up = True

    @property
    def is_answered(self) -> bool:
        """Whether any question was answered so far."""
        return any(asked.is_answered for asked in self._asked)

    @property
    def is_over(self) -> bool:
        """Whether every question is answered, refused or given up."""
        return all(asked.is_settled for asked in self._asked)

    # What it comes to

    def result(self) -> Discovered:
        """What is known."""
        first = self._find(Question.FIRST_PORT)
        seen = next((a.mapped for a in self._asked if a.local is Local.MAIN and a.mapped is not None), None)
        if seen is None:
            return Discovered(None)
        second = self._find(Question.SECOND_PORT)
        answers = True if second.is_answered else False if self._is_silent(second, first) else None
        translated = seen[0] not in self._own_hosts
        return Discovered(
            seen,
            translated,
            self._mapping(),
            self._filtering(),
            self._comes_back(Question.HAIRPIN, Question.HAIRPIN_BACK) if translated else None,
            answers,
            self._comes_back(Question.HAIRPIN_OPEN) if translated else None,
        )

    def _mapping(self) -> Behaviour | None:
        """By address alone, mappings are told apart only where there is a second address; they are rare."""
        first, second = self._find(Question.FIRST_PORT).mapped, self._find(Question.SECOND_PORT).mapped
        elsewhere = [a.mapped for a in self._all(Question.SECOND_ADDRESS) if a.mapped is not None]
        if first is None:
            return None
        if second is not None and second != first:
            return Behaviour.ADDRESS_AND_PORT_DEPENDENT
        if any(mapped != first for mapped in elsewhere):
            return None if second is None else Behaviour.ADDRESS_DEPENDENT
        return Behaviour.ENDPOINT_INDEPENDENT if second is not None or elsewhere else None

    def _filtering(self) -> Behaviour | None:
        beside = self._find(Question.FRESH)
        by_port, by_address = self._find(Question.FROM_SECOND_PORT), self._find(Question.FROM_SECOND_ADDRESS)
        if by_address.is_answered:
            return Behaviour.ENDPOINT_INDEPENDENT
        if by_port.is_answered:
            is_told = by_address.refused or self._is_silent(by_address, beside)
            return Behaviour.ADDRESS_DEPENDENT if is_told else None
        # A second port that nothing reaches may be why nothing comes from there.
        is_told = self._is_silent(by_port, beside) and self._find(Question.SECOND_PORT).is_answered
        return Behaviour.ADDRESS_AND_PORT_DEPENDENT if is_told else None

    def _comes_back(self, *questions: Question) -> bool | None:
        """Whether any of these, sent to our own outer address, came in again."""
        ways = [asked for question in questions for asked in self._all(question)]
        if not ways:
            return None
        if any(way.is_answered for way in ways):
            return True
        beside = self._find(Question.FIRST_PORT)
        return False if all(self._is_silent(way, beside) for way in ways) else None

    # Questions

    def _ask(
        self, question: Question, local: Local, target: stun.Address, now: float, change: int | None = None
    ) -> None:
        due = [now + delay for delay in SENT_AFTER_S]
        self._asked.append(_Asked(question, local, target, change, due))

    def _all(self, question: Question) -> Iterator[_Asked]:
        return (asked for asked in self._asked if asked.question is question)

    def _find(self, question: Question) -> _Asked:
        return next(self._all(question))

    def _take(
        self, asked: _Asked, local: Local, message: stun.Message, source: stun.Address, now: float
    ) -> None:
        if asked.question in _HAIRPINS:
            if local is not asked.local and stun.is_request(message):
                asked.answers += 1
                asked.due = []
            return
        if local is not asked.local:
            return
        if stun.is_refusal(message) or (asked.change and source == asked.target):
            asked.refused = True  # it does not answer from elsewhere
            asked.due = []
            return
        mapped = stun.mapped_address(message)
        if mapped is None:
            return
        self._rtt_s = max(self._rtt_s, now - asked.sent.pop(message.transaction_id))
        asked.answers += 1
        asked.mapped = mapped
        if asked.question not in _MEASURES:
            asked.due = []
        self._ask_further(asked, message, now)

    def _ask_further(self, asked: _Asked, message: stun.Message, now: float) -> None:
        """What can be asked only once something is known."""
        if asked.question is Question.FIRST_PORT and asked.answers == 1:
            other = stun.other_address(message)
            if other is not None and other[0] != self._reflector[0] and _is_host(other[0]):
                self._ask(Question.SECOND_ADDRESS, Local.MAIN, (other[0], self._reflector[1]), now)
        main, fresh = self._find(Question.FIRST_PORT).mapped, self._find(Question.FRESH).mapped
        if main is None or fresh is None or main[0] in self._own_hosts or any(self._all(Question.HAIRPIN)):
            return
        self._ask(Question.HAIRPIN, Local.MAIN, fresh, now)
        self._ask(Question.HAIRPIN_BACK, Local.FRESH, main, now)
        self._ask(Question.HAIRPIN_OPEN, Local.STRANGER, fresh, now)

    def _silence_at(self, asked: _Asked) -> float:
        """When a question that has been sent for the last time is given up."""
        if not self.is_answered:
            return self._began_at + BLOCKED_S
        return max(asked.sent.values()) + max(LEAST_WAIT_S, WAIT_RTTS * self._rtt_s)

    @staticmethod
    def _is_silent(asked: _Asked, beside: _Asked) -> bool:
        """Whether an answer is missing where most of those asked for beside it came."""
        return not asked.is_answered and not asked.refused and 2 * beside.answers > len(SENT_AFTER_S)


def _is_host(host: str) -> bool:
    address = ipaddress.ip_address(host)
    return not (address.is_unspecified or address.is_multicast)
