"""The life of one member in one session: which state follows which event, and what is then to be done.

A decision core: no I/O, no clock. ``membership.py`` carries the commands out and feeds their results back.

    JOINING     known to the host (or is the host); waits for the charter
    PROBING     the charter names the model: find it here, measure this machine
    WAITING     reported; waits for the host's countersigned plan
    CONNECTING  opens the ring's edges to its two neighbours
    LOADING     reads its block range
    READY       holds its blocks; waits until everyone does
    SERVING     tokens go round
    HELD        somebody is away since there was a plan: waits, with its blocks, to report anew
    LEFT        over, with a reason
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class State(enum.IntEnum):
    """Values are those of MemberState in rendezvous.proto."""

    JOINING = 1
    PROBING = 2
    WAITING = 3
    CONNECTING = 4
    LOADING = 5
    READY = 6
    SERVING = 7
    LEFT = 8
    HELD = 9


class Event(enum.Enum):
    """What happened."""

    CHARTERED = enum.auto()  # the host's first charter was verified
    PROBED = enum.auto()
    PLANNED = enum.auto()  # the host's countersigned plan was verified, and is not a refusal
    CONNECTED = enum.auto()
    LOADED = enum.auto()
    SERVE = enum.auto()  # the rendezvous: everyone is ready
    HOLD = enum.auto()  # somebody is away, perhaps this member itself
    ALL_BACK = enum.auto()  # the rendezvous: nobody is
    END = enum.auto()  # left, refused, closed, lost or failed


class Command(enum.Enum):
    """What is to be done on entering a state."""

    PROBE = enum.auto()
    SEND_REPORT = enum.auto()
    CONNECT = enum.auto()
    LOAD = enum.auto()
    SERVE = enum.auto()
    STOP = enum.auto()


class IllegalEvent(RuntimeError):
    """An event that cannot happen in this state: a fault of the sender."""


_TABLE: dict[tuple[State, Event], tuple[State, Command | None]] = (
    {
        (State.JOINING, Event.CHARTERED): (State.PROBING, Command.PROBE),
        (State.PROBING, Event.PROBED): (State.WAITING, Command.SEND_REPORT),
        (State.WAITING, Event.PLANNED): (State.CONNECTING, Command.CONNECT),
        (State.CONNECTING, Event.CONNECTED): (State.LOADING, Command.LOAD),
        (State.LOADING, Event.LOADED): (State.READY, None),
        (State.READY, Event.SERVE): (State.SERVING, Command.SERVE),
        (State.HELD, Event.ALL_BACK): (State.PROBING, Command.PROBE),
    }
    | {(state, Event.HOLD): (State.HELD, None) for state in State if State.PROBING <= state <= State.SERVING}
    | {(state, Event.END): (State.LEFT, Command.STOP) for state in State if state is not State.LEFT}
)


@dataclass
class Lifecycle:
    """Where one member is. ``handle`` moves it on and returns what to do."""

    state: State = State.JOINING

    @property
    def is_at_work(self) -> bool:
        """Whether there is a plan in force, which needs the edges, and the rendezvous only to be changed."""
        return State.CONNECTING <= self.state <= State.SERVING

    def handle(self, event: Event) -> Command | None:
        """The command that ``event`` calls for. Raises IllegalEvent naming state and event."""
        try:
            self.state, command = _TABLE[self.state, event]
        except KeyError:
            raise IllegalEvent(f"{event.name} cannot happen while {self.state.name}") from None
        return command
