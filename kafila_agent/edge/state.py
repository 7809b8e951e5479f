"""How far an edge has come, for ``link.py`` to say."""

from __future__ import annotations

import enum


class LinkState(enum.StrEnum):
    """How far the edge has come."""

    NEW = "new"
    PUNCHING = "punching"
    DIRECT = "direct"
    RELAYED = "relayed"
    CLOSED = "closed"


SOUGHT = (LinkState.PUNCHING, LinkState.DIRECT, LinkState.RELAYED)  # new addresses of the peer are of use
