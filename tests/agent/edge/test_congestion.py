from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from kafila_agent.edge.congestion import INITIAL_DATAGRAMS, MINIMUM_DATAGRAMS, EdgeCongestionControl

DATAGRAM = 1452
MIB = 1 << 20


def sent(control: EdgeCongestionControl, at: float) -> SimpleNamespace:
    packet = SimpleNamespace(sent_bytes=DATAGRAM, sent_time=at)
    control.on_packet_sent(packet=packet)
    return packet


def go_round(control: EdgeCongestionControl, now: float, rtt_s: float, losses: int = 0) -> float:
    """Fill the window, and let a round trip answer it, the first ``losses`` datagrams lost."""
    packets = [sent(control, now) for _ in range(control.congestion_window // DATAGRAM)]
    now += rtt_s
    for packet in packets[losses:]:
        control.on_rtt_measurement(now=now, rtt=rtt_s)
        control.on_packet_acked(now=now, packet=packet)
    if losses:
        control.on_packets_lost(now=now, packets=packets[:losses])
    assert control.bytes_in_flight == 0
    return now + 0.001


def started(rtt_s: float = 0.08) -> tuple[EdgeCongestionControl, float]:
    control = EdgeCongestionControl(max_datagram_size=DATAGRAM)
    return control, go_round(control, 1.0, rtt_s)


def test_the_window_starts_wide_and_doubles_while_it_is_used():
    control = EdgeCongestionControl(max_datagram_size=DATAGRAM)
    assert control.congestion_window == INITIAL_DATAGRAMS * DATAGRAM
    go_round(control, 1.0, 0.08)
    assert control.congestion_window >= 1.9 * INITIAL_DATAGRAMS * DATAGRAM


def test_a_window_that_is_not_used_does_not_grow():
    control = EdgeCongestionControl(max_datagram_size=DATAGRAM)
    for second in range(1, 100):
        control.on_packet_acked(now=second + 0.08, packet=sent(control, float(second)))
    assert control.congestion_window == INITIAL_DATAGRAMS * DATAGRAM


def test_a_lone_loss_without_a_queue_changes_nothing():
    control, now = started()
    window = control.congestion_window
    go_round(control, now, 0.08, losses=2)
    assert control.congestion_window >= window
    assert control.ssthresh is None


def test_many_losses_shrink_the_window_even_without_a_queue():
    control, now = started()
    window = control.congestion_window
    go_round(control, now, 0.08, losses=20)
    assert control.congestion_window < 2 * window
    assert control.ssthresh == control.congestion_window


def test_a_lone_loss_in_a_standing_queue_shrinks_the_window_once_a_round():
    control, now = started()
    now = go_round(control, now, 0.16)
    now = go_round(control, now, 0.16)
    window = control.congestion_window
    packets = [sent(control, now) for _ in range(10)]
    control.on_packets_lost(now=now + 0.1, packets=packets[:1])
    smaller = control.congestion_window
    assert 0.6 * window < smaller < 0.75 * window
    control.on_packets_lost(now=now + 0.1, packets=packets[1:2])
    assert control.congestion_window == smaller


def test_a_queue_that_stands_ends_the_doubling_before_anything_is_lost():
    control, now = started()
    for _ in range(3):
        now = go_round(control, now, 0.16)
    window = control.congestion_window
    go_round(control, now, 0.16)
    assert control.congestion_window - window <= 2 * DATAGRAM


@pytest.mark.parametrize("losses", [0, 1, 9])
def test_the_window_is_whole_datagrams_and_never_below_the_least(losses):
    control, now = started()
    for i in range(60):
        now = go_round(control, now, 0.08 + (i % 7) * 0.03, losses=losses if i % 3 == 0 else 0)
        assert control.congestion_window % DATAGRAM == 0
        assert control.congestion_window >= MINIMUM_DATAGRAMS * DATAGRAM
        if control.congestion_window > 500 * DATAGRAM:
            break
    control.on_persistent_congestion()
    assert control.congestion_window == MINIMUM_DATAGRAMS * DATAGRAM


@pytest.mark.parametrize(
    ("loss", "bytes_per_s", "queue_s", "at_most_s"),
    [
        (0.01, None, 0.0, 0.8),
        (0.0, 2.5e6, 0.1, 0.8),
        (0.0, 2.5e6, 0.01, 1.2),
        (0.0, 0.5e6, 0.2, 2.6),
    ],
)
def test_a_mebibyte_takes_little_more_than_the_line_needs(world_of, loss, bytes_per_s, queue_s, at_most_s):
    """80 ms of round trip; the line alone needs 0.46 s at 20 Mbit/s and 2.14 s at 4 Mbit/s."""
    world = world_of(sizes=(1452, 1200))
    world.delay_s, world.bytes_per_s, world.queue_s = 0.04, bytes_per_s, queue_s
    chance = random.Random(1)
    world.lets = lambda source, target, data: chance.random() >= loss
    one, two = world.ends
    one.link.connect([two.address], world.now)
    two.link.connect([one.address], world.now)
    assert world.run(5.0, lambda: one.link.connection and two.link.connection)
    one.link.send_frame(bytes(MIB))
    assert world.run(at_most_s, lambda: len(two.frames) == 1)


def test_a_decoding_step_needs_half_a_round_trip_from_the_first_one_on(world_of):
    world = world_of(sizes=(1452, 1200))
    world.delay_s = 0.04
    one, two = world.ends
    one.link.connect([two.address], world.now)
    two.link.connect([one.address], world.now)
    assert world.run(5.0, lambda: one.link.connection and two.link.connection)
    for _ in range(5):
        two.frames.clear()
        one.link.send_frame(bytes(16384))
        assert world.run(0.0405, lambda: len(two.frames) == 1)
