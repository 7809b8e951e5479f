"""Frames and datagrams as anybody may send them: taken for what they are, or dropped. Never a fault, never growth."""

from __future__ import annotations

import random
import tracemalloc

from hypothesis import given, settings

from kafila_agent.edge.binding import CircuitBinding
from kafila_agent.edge.check import CheckKind, PairKey, parse_check
from kafila_agent.edge.frame import Dtype, Frame, FrameError, Kind, adopted_from, parse_frame
from kafila_agent.edge.messages import MessageError, MessageKind, MessageReader, message_header
from kafila_proto import stun
from kafila_proto.relay import RelayKind, data_header, encode_binding, parse_binding
from kafila_rendezvous.circuits import Circuits
from kafila_rendezvous.reflector import reflect
from tests.fuzz.values import mutated

A_EXAMPLE = 50  # of the seeded storm, for each of hypothesis's: a million with the profile "fuzz"
LARGEST_GROWTH_BYTES = 1 << 20
LARGEST_AMPLIFICATION = 2.0
HERE, THERE = ("192.0.2.1", 7470), ("192.0.2.2", 4444)
PLACES = {0: HERE, stun.CHANGE_PORT: (HERE[0], 7471)}
CIRCUITS = Circuits()
GRANTS = [CIRCUITS.grant(b"s" * 16, 1, a * 32, b * 32, 0.0) for a, b in ((b"a", b"b"), (b"b", b"a"))]
CIRCUIT, KEY = GRANTS[0].circuit_id, GRANTS[0].key
PAIR = PairKey.derive(b"s" * 16, 1, b"a" * 32, b"b" * 32)


def frame_of(kind: Kind, **fields) -> bytes:
    wanted = {
        "epoch": 1,
        "sequence": 2,
        "slot": 0,
        "position": 0,
        "rows": 3,
        "width": 0,
        "rows_wanted": 1,
        "stage_times": (),
        "payload": bytes(12),
        "dtype": Dtype.INT32,
    }
    return Frame(kind=kind, **wanted | fields).encode()


SAMPLES = [
    frame_of(Kind.TOKENS),
    frame_of(Kind.HIDDEN, dtype=Dtype.FLOAT32, width=4, payload=bytes(48)),
    frame_of(Kind.ADOPT, **adopted_from(1, 9)),
    message_header(MessageKind.FRAME, 8) + bytes(8),
    stun.encode_request()[0],
    stun.encode_request(change=2)[0],
    data_header(CIRCUIT) + b"payload",
    *(encode_binding(kind, CIRCUIT, 7, KEY) for kind in RelayKind),
    *(PAIR.encode(kind, bytes(8), from_dialer=True, size=64) for kind in CheckKind),
]


def take(data: bytes, binding: CircuitBinding) -> None:
    """Everything that a frame or datagram from outside may reach, at either end."""
    try:
        parse_frame(data)
    except FrameError:
        pass
    reader = MessageReader(1 << 16)
    try:
        for _ in reader.feed(data):
            pass
    except MessageError:
        pass
    try:
        stun.parse_stun(data)
    except stun.StunError:
        pass
    reflected = reflect(data, THERE, PLACES)
    assert reflected is None or len(reflected.data) <= LARGEST_AMPLIFICATION * len(data)
    parse_check(data)
    PAIR.parse(data)
    parse_binding(data)
    binding.receive_datagram(data, 0.0)
    CIRCUITS.receive_datagram(data, THERE, 0.0)


@given(mutated(SAMPLES))
def test_anything_is_taken_or_dropped(data):
    take(data, CircuitBinding(CIRCUIT, KEY, 0.0))


def test_a_storm_leaves_nothing_behind():
    """Seeded, fast and long: see A_EXAMPLE."""
    dice, binding = random.Random(7), CircuitBinding(CIRCUIT, KEY, 0.0)
    count = A_EXAMPLE * settings().max_examples
    tracemalloc.start()
    for number in range(count):
        if number == count // 10:
            before = tracemalloc.get_traced_memory()[0]
        data = bytearray(dice.choice(SAMPLES))
        for _ in range(dice.randrange(4)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        take(bytes(data[: dice.randrange(1, len(data) + 40)]), binding)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < LARGEST_GROWTH_BYTES
    assert len(CIRCUITS) == 1
