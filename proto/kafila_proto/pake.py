"""The key exchange by which host and joiner prove to each other that both know the words of a code.

    host (side A)                                       joiner (side B)
      element A, session id, name, certificate  ------>
                                                <------   element B, confirmation B, name, certificate
      confirmation A                            ------>

SPAKE2 in its A/B form: the symmetric form would let the rendezvous answer each side with itself. The joiner
confirms first, so whoever holds the host's element gets one guess at the words, and the host sees it fail.
Both confirmations are HMACs under keys derived from the exchange's key; what they cover (the transcript) is
all that the rendezvous could otherwise swap: both certificates, both names, its own certificate, the session.
Source: Abdalla and Pointcheval 2005; the confirmation is that of RFC 9382 section 4.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from spake2 import SPAKE2_A, SPAKE2_B
from spake2.ed25519_basic import NotOnCurve
from spake2.spake2 import SPAKEError

from kafila_proto import PROTOCOL
from kafila_proto.session_code import password

SESSION_ID_BYTES = 16

_KEY_BYTES = 32
_ELEMENT_BYTES = 33  # the side's letter, then a point
_INFO = b"kafila introduction 1"


class PakeError(ValueError):
    """The other side does not know the words, or somebody in between altered what was said."""


class Role(StrEnum):
    """Whose confirmation it is."""

    HOST = "host"
    JOINER = "joiner"


@dataclass(frozen=True, slots=True)
class Transcript:
    """What the two sides must agree on besides the words. Fingerprints are 32 bytes, the session id 16."""

    session_id: bytes
    host_name: str
    host_fingerprint: bytes
    joiner_name: str
    joiner_fingerprint: bytes
    rendezvous_fingerprint: bytes

    def encode(self) -> bytes:
        """One reading only: every field with its length before it."""
        fields = (
            _INFO,
            str(PROTOCOL).encode(),
            self.session_id,
            Role.HOST.encode(),
            self.host_name.encode(),
            self.host_fingerprint,
            Role.JOINER.encode(),
            self.joiner_name.encode(),
            self.joiner_fingerprint,
            self.rendezvous_fingerprint,
        )
        return b"".join(len(field).to_bytes(4, "big") + field for field in fields)


class Exchange:
    """One side of one exchange. ``element`` goes to the other side; ``agree`` takes the other's."""

    def __init__(self, role: Role, words: tuple[str, ...]) -> None:
        side = SPAKE2_A if role is Role.HOST else SPAKE2_B
        self._role = role
        self._spake = side(password(words), idA=Role.HOST.encode(), idB=Role.JOINER.encode())
        self.element: bytes = self._spake.start()

    def agree(self, element: bytes, transcript: Transcript) -> Confirmations:
        """Both confirmations, from the other side's element. Raises PakeError if it is not one."""
        if len(element) != _ELEMENT_BYTES:
            raise PakeError(f"an element of {len(element)} bytes, not {_ELEMENT_BYTES}")
        try:
            key = self._spake.finish(element)
        except (SPAKEError, NotOnCurve, ValueError, AssertionError) as error:
            raise PakeError("the other side's element is not one of this exchange") from error
        elements = sorted((self.element, element))  # side A's starts with its side's letter: host first
        covered = transcript.encode() + b"".join(elements)
        keys = HKDF(hashes.SHA256(), 2 * _KEY_BYTES, salt=None, info=_INFO + sha256(covered).digest()).derive(
            key
        )
        macs = [hmac.digest(part, covered, sha256) for part in (keys[:_KEY_BYTES], keys[_KEY_BYTES:])]
        mine, theirs = macs if self._role is Role.HOST else macs[::-1]
        return Confirmations(mine=mine, theirs=theirs)


@dataclass(frozen=True, slots=True)
class Confirmations:
    """The MAC this side sends and the one it expects, 32 bytes each."""

    mine: bytes
    theirs: bytes

    def check(self, confirmation: bytes) -> None:
        """Raise PakeError unless the other side's ``confirmation`` is the expected one."""
        if not hmac.compare_digest(confirmation, self.theirs):
            raise PakeError("the other side does not know these words, or something in between altered them")
