"""The shell around one link: its timer, its edge, whoever waits for that, and its errands to the rendezvous."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

import structlog

from kafila_agent.edge.demultiplex import Demultiplexer
from kafila_agent.edge.edge import Edge, Payload
from kafila_agent.edge.errors import EdgeError
from kafila_agent.edge.events import (
    AddressesNeeded,
    CircuitNeeded,
    Closed,
    Connected,
    FrameReceived,
    Moved,
    RoundTrip,
    StreamBroken,
    StreamReceived,
)
from kafila_agent.edge.link import Link
from kafila_agent.edge.observer import EdgeObserver
from kafila_agent.edge.paths import Address, Way
from kafila_agent.edge.session import EdgeSession
from kafila_agent.edge.stream import EdgeStream, EdgeStreams
from kafila_proto.names import session_label

log = structlog.get_logger()

_MOMENT_S = 0.001

SocketAddress = tuple[str, int]


class CircuitGrant(Protocol):
    """What the rendezvous grants: see rendezvous.proto."""

    @property
    def circuit_id(self) -> bytes: ...  # noqa: D102
    @property
    def key(self) -> bytes: ...  # noqa: D102


RequestCircuit = Callable[
    [bytes], None
]  # of the peer; the answer comes by ``take_circuit`` or ``refuse_circuit``
Answer = Callable[[str, EdgeStream], None]  # the peer's name, and an exchange that it has opened


def _answer_nobody(peer: str, stream: EdgeStream) -> None:
    stream.break_off("nothing is answered here")


class Neighbour:
    """One other member of ``session``. ``send`` puts a datagram on the endpoint's socket; ``find_addresses`` says,
    given the rendezvous's reflector, where that can be reached.
    """

    def __init__(
        self,
        link: Link,
        session: EdgeSession,
        demultiplexer: Demultiplexer,
        send: Callable[[bytes, SocketAddress], None],
        find_addresses: Callable[[SocketAddress | None], Awaitable[list[SocketAddress]]],
        observer: EdgeObserver,
    ):
        self.link = link
        self.name = session.roster[link.peer]
        self._log = log.bind(session=session_label(session.session_id), epoch=session.epoch, peer=self.name)
        self.edge: Edge | None = None
        self.request_circuit: RequestCircuit | None = None
        self.relay_address: SocketAddress | None = None
        self.answer: Answer = _answer_nobody
        self._demultiplexer = demultiplexer
        self._send = send
        self._observer = observer
        self._sought_at = 0.0
        self._find_addresses = find_addresses
        self._loop = asyncio.get_running_loop()
        self._sought: asyncio.Future[Edge] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._errand: asyncio.Task[None] | None = None
        self._is_handing_on = self._is_owed = False

    async def connect(self, addresses: list[SocketAddress], *, relay_at_once: bool = False) -> Edge:
        """The edge, once it stands. Raises EdgeError saying why it does not."""
        if self.edge is not None:
            return self.edge
        if self._sought is None:
            self._sought = self._loop.create_future()
            self._sought_at = self._loop.time()
        sought = self._sought
        self.link.connect(addresses, self._loop.time(), relay_at_once=relay_at_once)
        self.pump()
        return await asyncio.shield(sought)

    def take_circuit(self, grant: CircuitGrant) -> None:
        """Use a circuit, whichever end asked for it; before the edge is asked for there is no use for one."""
        if self.relay_address is not None:
            self._demultiplexer.add_circuit(grant.circuit_id, self.link, self.relay_address)
            self.link.bind(grant.circuit_id, grant.key, self._loop.time())
            self.pump()

    def leave(self, reason: str) -> None:
        """Close the edge and everything under way, telling the peer but not the edge's owner."""
        edge, self.edge = self.edge, None
        if edge is not None:
            edge.end(reason, lost=False)
        self.link.close(reason, self._loop.time())
        self.pump()
        for under_way in (self._timer, self._errand):
            if under_way is not None:
                under_way.cancel()

    def take_in(self) -> None:
        """Hand on what has come, as ``pump`` does; after a frame, or a part of one, the rest waits a moment.

        A stage begins with it when this thread lets go of the interpreter; what else there is to say can wait so long.
        """
        now = self._loop.time()
        if self._hand_on():
            self._set_timer(now + _MOMENT_S)
        else:
            self._send_out(now)

    def pump(self) -> None:
        """Hand on what the link has to tell, send what it has to send, and set its timer."""
        if (
            self._is_handing_on
        ):  # an owner's callback, called from below, sent a frame: it goes out with the rest
            self._is_owed = True
            return
        now = self._loop.time()
        self._hand_on()
        self._send_out(now)

    def _hand_on(self) -> bool:
        """Tell what the link has to tell; whether there was a frame, and nothing that is to be sent at once."""
        has_frame = self._is_owed = False
        self._is_handing_on = True
        try:
            while (event := self.link.next_event()) is not None:
                has_frame = has_frame or isinstance(event, FrameReceived)
                self._take_event(event)
        finally:
            self._is_handing_on = False
        connection = self.link.connection
        is_amid_message = connection is not None and connection.is_amid_message
        return (has_frame or is_amid_message) and not self._is_owed

    def _send_out(self, now: float) -> None:
        self.link.send_datagrams(now, self._send_to)
        if self.edge is not None and self.link.connection is not None:
            self.edge.rtt_s = self.link.connection.rtt_s
            self.edge.packets_lost = self.link.connection.packets_lost
            self.edge.streams.pumped()
        self._set_timer(self.link.get_timer())

    def _send_to(self, data: bytes, address: Address) -> None:
        if not isinstance(address, Way):
            self._send(data, address)
        elif self.relay_address is not None:
            self._send(data, self.relay_address)

    def _take_event(self, event: object) -> None:
        match event:
            case FrameReceived():
                if self.edge is not None:
                    self.edge.deliver(event.frame)
            case RoundTrip():
                if self.edge is not None:
                    self._observer.on_round_trip(self.name, self.edge.path, event.rtt_s)
            case StreamReceived() | StreamBroken():
                if self.edge is not None:
                    self.edge.streams.take_event(event)
            case Connected():
                self._connected(event.path)
            case Moved():
                self._log.info("edge moved", path=event.path)
                self._observer.on_edge_moved(self.name, event.path)
                if self.edge is not None:
                    self.edge.path = event.path
            case CircuitNeeded():
                self._ask_circuit()
            case AddressesNeeded():
                self._find_out_addresses()
            case Closed():
                self._closed(event.reason)
            case _:
                self._demultiplexer.take_event(self.link, event)

    def _connected(self, path: str) -> None:
        def send_frame(frame: Payload) -> None:
            self.link.send_frame(frame)
            self.pump()

        assert self.link.connection is not None
        self._log.info("edge open", path=path)
        streams = EdgeStreams(self.link.connection, self.pump, partial(self.answer, self.name))
        self.edge = Edge(self.name, self.link.peer, path, send_frame, streams)
        sought, self._sought = self._sought, None
        took_s = self._loop.time() - self._sought_at if sought is not None else 0.0
        self._observer.on_edge_open(self.name, path, took_s)
        if sought is not None:
            sought.set_result(self.edge)

    def _closed(self, reason: str) -> None:
        self._log.info("edge closed", reason=reason)
        edge, self.edge = self.edge, None
        sought, self._sought = self._sought, None
        if sought is not None:
            self._observer.on_edge_failed(self.name)
            sought.set_exception(EdgeError(f"no edge to {self.name}: {reason}"))
            sought.exception()  # whoever asked may have gone away
        if edge is not None:
            self._observer.on_edge_lost(self.name)
            edge.end(reason, lost=True)

    def _find_out_addresses(self) -> None:
        """One errand at a time."""
        if self._errand is None or self._errand.done():
            self._errand = self._loop.create_task(self._tell_addresses())

    async def _tell_addresses(self) -> None:
        self.link.tell_addresses(await self._find_addresses(self.relay_address))
        self.pump()

    def _ask_circuit(self) -> None:
        if self.request_circuit is None or self.relay_address is None:
            self.link.circuit_refused("no rendezvous to relay")
        else:
            self.request_circuit(self.link.peer)

    def _set_timer(self, when: float | None) -> None:
        timer = self._timer
        if timer is not None and (when is None or when < timer.when()):
            timer.cancel()
            timer = self._timer = None
        if timer is None and when is not None:
            self._timer = self._loop.call_at(when, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self.link.handle_timer(self._loop.time())
        self.pump()
