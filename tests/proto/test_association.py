"""Whatever streams break, and wherever: what is said comes once, in order, or the association is over."""

from __future__ import annotations

import random
from collections import deque

import pytest

from kafila_proto.association import MAX_BYTES, MAX_MESSAGES, Association, AssociationError
from kafila_proto.rendezvous_pb2 import FromAgent, Heard, JoinSession, Serve, ToAgent


def request(number: int) -> FromAgent:
    return FromAgent(join=JoinSession(number=str(number)))


class End:
    """One side, what is on its way to the other, and what it has taken."""

    def __init__(self, kind, make) -> None:
        self.half = Association(kind)
        self.make = make
        self.said = 0
        self.on_the_way: deque = deque()
        self.taken: list = []

    def say(self) -> None:
        self.half.say(self.make(self.said))
        self.said += 1

    def write(self) -> None:
        if (message := self.half.next()) is not None:
            self.on_the_way.append(message)

    def read_from(self, other: End) -> None:
        if other.on_the_way:
            message = other.on_the_way.popleft()
            if self.half.hear(message):
                self.taken.append(message)


def begin_stream(agent: End, rendezvous: End) -> None:
    """What was on its way is lost, and both sides have been told how many the other has heard."""
    for end in (agent, rendezvous):
        end.on_the_way.clear()
    heard = agent.half.heard, rendezvous.half.heard
    rendezvous.half.go_on(heard[0])
    agent.half.go_on(heard[1])


@pytest.mark.parametrize("seed", range(30))
def test_all_that_is_said_comes_once_and_in_order(seed):
    chance = random.Random(seed)
    agent = End(FromAgent, request)
    rendezvous = End(ToAgent, lambda number: ToAgent(serve=Serve(epoch=number)))
    breaks = chance.choice([0.0, 0.01, 0.1])
    most_kept = 0
    for _ in range(1500):
        one, other = chance.sample([agent, rendezvous], 2)
        chance.choice([one.say, one.write, one.write, lambda: one.read_from(other)])()  # noqa: B023
        if chance.random() < breaks:
            begin_stream(agent, rendezvous)
        most_kept = max(most_kept, agent.half.kept, rendezvous.half.kept)
    begin_stream(agent, rendezvous)
    while (
        not (agent.half.is_written and rendezvous.half.is_written)
        or agent.on_the_way
        or rendezvous.on_the_way
    ):
        for one, other in ((agent, rendezvous), (rendezvous, agent)):
            one.write()
            other.read_from(one)
    assert [int(message.join.number) for message in rendezvous.taken] == list(range(agent.said))
    assert [message.serve.epoch for message in agent.taken] == list(range(rendezvous.said))
    assert agent.half.kept < 16 + 1  # what is heard is not kept for long
    assert most_kept > 16


def test_what_is_large_is_not_kept_for_long():
    large = FromAgent(join=JoinSession(number="x" * 100_000))
    agent, rendezvous = End(FromAgent, lambda _: large), End(ToAgent, None)
    agent.say()
    agent.write()
    rendezvous.read_from(agent)
    rendezvous.write()
    agent.read_from(rendezvous)
    assert agent.half.kept == 0


@pytest.mark.parametrize(("length", "most"), [(1, MAX_MESSAGES), (16_000, MAX_BYTES // 16_000 + 1)])
def test_what_is_kept_has_a_limit(length, most):
    half = Association(FromAgent)
    message = FromAgent(join=JoinSession(number="x" * length))
    for _ in range(most):
        half.say(message)
    with pytest.raises(AssociationError, match=f"{most} messages"):
        half.say(message)


def test_nobody_has_heard_what_was_not_said_nor_less_than_before():
    half = Association(FromAgent)
    for number in range(3):
        half.say(request(number))
    half.next()
    with pytest.raises(AssociationError):
        half.hear(ToAgent(heard=Heard(count=2)))  # one was written
    half.hear(ToAgent(heard=Heard(count=1)))
    for heard in (0, 4, 2**64 - 1):
        with pytest.raises(AssociationError):
            half.go_on(heard)
    half.go_on(3)  # more may have arrived than is known to be written on this stream
    assert (half.kept, half.is_written) == (0, True)
