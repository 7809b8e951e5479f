"""Where a session is, and what moves it; session.py says what then happens.

FORMING      members are admitted, report, and the plan is made and countersigned
HELD         a member was lost after the plan: the others wait for it, for HOLD_S
GATHERING    everyone is back and reports anew; the plan is made and countersigned again, in a new epoch
CONNECTING   the plan is with everyone; edges are opened, circuits granted
LOADING      everyone's edges are up; block ranges are read
SERVING      everyone is ready
CLOSED       over, with a reason that names who left or what failed
"""

from __future__ import annotations

import enum


class SessionState(enum.StrEnum):
    """How far a session has come."""

    FORMING = "forming"
    HELD = "held"
    GATHERING = "gathering"
    CONNECTING = "connecting"
    LOADING = "loading"
    SERVING = "serving"
    CLOSED = "closed"


class SessionEvent(enum.StrEnum):
    """What moves a session, or may come without moving it; the text completes "... cannot come now"."""

    ADMIT = "an admission"
    CHARTER = "a charter"
    REPORT = "a report"
    PLANNED = "the planner's answer"
    COUNTERSIGNED = "a plan"
    CIRCUIT = "a circuit request"
    PROGRESS = "progress"
    DEPARTURE = "a departure"
    ABSENCE = "an absence"
    RETURN = "a return"
    ALL_BACK = "everyone's return"
    ALL_CONNECTED = "everyone's edges"
    ALL_READY = "everyone's readiness"
    END = "an end"


TRANSITIONS: dict[tuple[SessionState, SessionEvent], SessionState] = {
    (SessionState.FORMING, SessionEvent.ADMIT): SessionState.FORMING,
    (SessionState.FORMING, SessionEvent.CHARTER): SessionState.FORMING,
    (SessionState.FORMING, SessionEvent.REPORT): SessionState.FORMING,
    (SessionState.FORMING, SessionEvent.PROGRESS): SessionState.FORMING,
    (SessionState.FORMING, SessionEvent.DEPARTURE): SessionState.FORMING,
    (SessionState.FORMING, SessionEvent.PLANNED): SessionState.FORMING,
    (SessionState.FORMING, SessionEvent.COUNTERSIGNED): SessionState.CONNECTING,
    (SessionState.CONNECTING, SessionEvent.CIRCUIT): SessionState.CONNECTING,
    (SessionState.CONNECTING, SessionEvent.PROGRESS): SessionState.CONNECTING,
    (SessionState.CONNECTING, SessionEvent.ALL_CONNECTED): SessionState.LOADING,
    (SessionState.LOADING, SessionEvent.CIRCUIT): SessionState.LOADING,
    (SessionState.LOADING, SessionEvent.PROGRESS): SessionState.LOADING,
    (SessionState.LOADING, SessionEvent.ALL_READY): SessionState.SERVING,
    (SessionState.SERVING, SessionEvent.CIRCUIT): SessionState.SERVING,
    (SessionState.SERVING, SessionEvent.PROGRESS): SessionState.SERVING,
    (SessionState.HELD, SessionEvent.PROGRESS): SessionState.HELD,
    (SessionState.HELD, SessionEvent.RETURN): SessionState.HELD,
    (SessionState.HELD, SessionEvent.ALL_BACK): SessionState.GATHERING,
    (SessionState.GATHERING, SessionEvent.REPORT): SessionState.GATHERING,
    (SessionState.GATHERING, SessionEvent.PROGRESS): SessionState.GATHERING,
    (SessionState.GATHERING, SessionEvent.PLANNED): SessionState.GATHERING,
    (SessionState.GATHERING, SessionEvent.COUNTERSIGNED): SessionState.CONNECTING,
}
TRANSITIONS |= {
    (state, SessionEvent.ABSENCE): SessionState.HELD
    for state in SessionState
    if state not in (SessionState.FORMING, SessionState.CLOSED)
}
TRANSITIONS |= {
    (state, SessionEvent.END): SessionState.CLOSED
    for state in SessionState
    if state is not SessionState.CLOSED
}
