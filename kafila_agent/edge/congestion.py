"""How much an edge may have on its way at once.

aioquic's Reno halves the window for every lost datagram, and on a home network with 1 % of them lost at
random that leaves ten of them a round trip: 2 MiB of a prompt take ten seconds. Here a loss counts as
congestion only together with what congestion does: the round trip has grown by a standing queue, or more
than a few of a round's datagrams are gone (the thresholds are those of BBR's second version,
draft-ietf-ccwg-bbr section 5.5.10). The window begins large enough for a decoding step, and grows only
while it is used: a step a round trip proves nothing about it.
"""

from __future__ import annotations

from collections.abc import Iterable

from aioquic.quic.congestion.base import QuicCongestionControl, register_congestion_control
from aioquic.quic.packet_builder import QuicSentPacket

NAME = "kafila"
INITIAL_DATAGRAMS = 64
MINIMUM_DATAGRAMS = 8
TOLERATED_LOSS = 0.05
DECREASE = 0.7
INCREASE = 1 / 8  # of the window a round trip, while no queue stands
QUEUE_S = 0.004
QUEUE_SHARE = 0.25  # of the least round trip
FORGET_RTT_S = 10.0
SMALL_BYTES = 1200  # what every path carries that QUIC may be used on
LARGE_LOSSES = 3  # round trips that lost large datagrams and brought none


class EdgeCongestionControl(QuicCongestionControl):
    """The window of one connection, told of every datagram sent, acknowledged and lost."""

    def __init__(self, *, max_datagram_size: int):
        super().__init__(max_datagram_size=max_datagram_size)
        self._datagram_bytes = max_datagram_size
        self.congestion_window = INITIAL_DATAGRAMS * max_datagram_size
        self.packets_lost = 0
        self._round_began_at = 0.0
        self._round_peak = self._last_round_peak = 0
        self._round_acked = self._round_lost = 0
        self._round_rtt_s = self._last_round_rtt_s = float("inf")
        self._least_rtt_s = float("inf")
        self._least_rtt_at = 0.0
        self._reduced_at = -1.0
        self._growth = 0.0
        self._large_losses = 0
        self._large_lost_at = -1.0

    @property
    def loses_large(self) -> bool:
        """Whether small datagrams arrive and none of the large: the path carries less than it did (RFC 8899 4.3)."""
        return self._large_losses >= LARGE_LOSSES

    def on_packet_sent(self, *, packet: QuicSentPacket) -> None:
        """One more is on its way."""
        self.bytes_in_flight += packet.sent_bytes
        self._round_peak = max(self._round_peak, self.bytes_in_flight)

    def on_packet_acked(self, *, now: float, packet: QuicSentPacket) -> None:
        """One has arrived: grow, if the window was in use."""
        sent_at = packet.sent_time or 0.0
        if sent_at > self._round_began_at:
            self._end_round(now)
        is_used = max(self._round_peak, self._last_round_peak) >= self.congestion_window // 2
        self.bytes_in_flight -= packet.sent_bytes
        self._round_acked += packet.sent_bytes
        if packet.sent_bytes > SMALL_BYTES:
            self._large_losses = 0
        if not is_used or sent_at <= self._reduced_at:
            return
        self._growth += packet.sent_bytes * self._growth_rate()
        whole = int(self._growth // self._datagram_bytes) * self._datagram_bytes
        self._growth -= whole
        self.congestion_window += whole  # by whole datagrams: what fits beside them is sent as crumbs

    def on_packets_expired(self, *, packets: Iterable[QuicSentPacket]) -> None:
        """Some are of no interest any more: their keys are gone."""
        for packet in packets:
            self.bytes_in_flight -= packet.sent_bytes

    def on_packets_lost(self, *, now: float, packets: Iterable[QuicSentPacket]) -> None:
        """Some are lost: shrink, once a round trip, if that is congestion."""
        last_sent_at = large_sent_at = 0.0
        for packet in packets:
            self.packets_lost += 1
            self.bytes_in_flight -= packet.sent_bytes
            self._round_lost += packet.sent_bytes
            last_sent_at = packet.sent_time or 0.0
            if packet.sent_bytes > SMALL_BYTES:
                large_sent_at = last_sent_at
        if large_sent_at > self._large_lost_at:
            self._large_losses += 1
            self._large_lost_at = now
        if last_sent_at > self._reduced_at and (self._queue_stands() or self._is_lossy()):
            self._reduced_at = now
            datagrams = int(self.congestion_window * DECREASE) // self._datagram_bytes
            self.congestion_window = max(datagrams, MINIMUM_DATAGRAMS) * self._datagram_bytes
            self.ssthresh = self.congestion_window

    def on_persistent_congestion(self) -> None:
        """Nothing arrived for several probe timeouts."""
        self.congestion_window = MINIMUM_DATAGRAMS * self._datagram_bytes

    def on_rtt_measurement(self, *, now: float, rtt: float) -> None:
        """A round trip in seconds."""
        if rtt <= self._least_rtt_s or now - self._least_rtt_at > FORGET_RTT_S:
            self._least_rtt_s, self._least_rtt_at = rtt, now
        self._round_rtt_s = min(self._round_rtt_s, rtt)

    def path_changed(self) -> None:
        """Another path's round trip says nothing of queues on this one."""
        self._least_rtt_s = self._round_rtt_s = self._last_round_rtt_s = float("inf")

    def _growth_rate(self) -> float:
        """By how much of what arrives the window grows."""
        if self.ssthresh is None:
            return 1.0
        return self._datagram_bytes / self.congestion_window if self._queue_stands() else INCREASE

    def _end_round(self, now: float) -> None:
        self._round_began_at = now
        self._last_round_rtt_s, self._round_rtt_s = self._round_rtt_s, float("inf")
        self._last_round_peak, self._round_peak = self._round_peak, self.bytes_in_flight
        self._round_acked = self._round_lost = 0
        if self.ssthresh is None and self._queue_stands():
            self.ssthresh = self.congestion_window

    def _queue_stands(self) -> bool:
        """Whether even the quickest of the last whole round waited in a queue."""
        if self._last_round_rtt_s == float("inf"):
            return False
        return self._last_round_rtt_s - self._least_rtt_s > max(QUEUE_S, QUEUE_SHARE * self._least_rtt_s)

    def _is_lossy(self) -> bool:
        """Whether this round has lost more than chance does; two datagrams may go in the smallest."""
        allowed = max(2 * self._datagram_bytes, TOLERATED_LOSS * (self._round_acked + self._round_lost))
        return self._round_lost > allowed


register_congestion_control(NAME, EdgeCongestionControl)
