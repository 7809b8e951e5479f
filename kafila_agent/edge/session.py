"""What an edge must know of the session it belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EdgeSession:
    """One epoch of one session. ``roster`` maps fingerprints (SHA-256 of the certificate's DER) to names."""

    session_id: bytes
    epoch: int
    own_name: str
    roster: Mapping[bytes, str]
