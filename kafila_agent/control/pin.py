"""Which rendezvous this is: its address, and the certificate that is pinned for it.

At first contact the certificate's fingerprint is kept in the agent's state directory, one file per address;
an address may also carry the fingerprint itself, ``HOST:PORT#sha256hex``. Introductions bind it once more, so
that host and joiner notice if somebody in between showed them different ones.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from kafila_proto.certificate import FINGERPRINT_BYTES

DEFAULT_PORT = 7470
PIN_DIRECTORY = "pins"

_NEXT_ADDRESS_S = 0.25  # RFC 8305 section 5: do not wait for one address family before trying the other


class LinkError(Exception):
    """The rendezvous cannot be had; the message says which, why and what to do."""


class Unreachable(LinkError):
    """Nobody answers there, or nobody who speaks TLS."""


class AddressError(LinkError, ValueError):
    """Text that is no address of a rendezvous."""


class PinMismatch(LinkError):
    """Somebody answers, with another certificate than the one that is pinned."""


@dataclass(frozen=True, slots=True)
class RendezvousAddress:
    """Where a rendezvous is; ``pinned`` is a fingerprint (32 bytes) that came with the address."""

    host: str
    port: int
    pinned: bytes | None = None

    def __str__(self) -> str:
        """HOST:PORT, an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> RendezvousAddress:
    """``HOST``, ``HOST:PORT`` or either with ``#sha256hex``. Raises AddressError saying what is wrong."""
    place, _, pin = text.strip().partition("#")
    if place.startswith("["):
        host, _, rest = place[1:].partition("]")
        port = rest.removeprefix(":")
    elif place.count(":") > 1:
        host, port = place, ""
    else:
        host, _, port = place.partition(":")
    is_odd = not host or "[" in host or "]" in host
    if is_odd or (port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536)):
        raise AddressError(
            f"{text!r} is not the address of a rendezvous: write HOST:PORT, or HOST:PORT#FINGERPRINT"
        )
    return RendezvousAddress(host, int(port or DEFAULT_PORT), _parse_pin(pin) if pin else None)


def _parse_pin(text: str) -> bytes:
    try:
        pin = bytes.fromhex(text.replace(":", ""))
    except ValueError:
        pin = b""
    if len(pin) != FINGERPRINT_BYTES:
        raise AddressError(
            f"{text!r} is not a fingerprint: kafila-rendezvous prints it, {2 * FINGERPRINT_BYTES} hex digits"
        )
    return pin


class Pins:
    """The fingerprints kept in a state directory."""

    def __init__(self, state_dir: Path) -> None:
        self._directory = state_dir / PIN_DIRECTORY

    def check(self, address: RendezvousAddress, seen: bytes) -> None:
        """Raise PinMismatch if ``seen`` is not what is pinned for ``address``; what was never seen passes."""
        if address.pinned is not None:
            if seen != address.pinned:
                raise PinMismatch(
                    f"the rendezvous at {address} shows the certificate {seen.hex()}, the address given"
                    f" asks for {address.pinned.hex()}: compare it with what kafila-rendezvous printed there"
                )
            return
        kept = self._kept(address)
        if kept is not None and kept != seen.hex():
            raise PinMismatch(
                f"the rendezvous at {address} shows the certificate {seen.hex()}, at first contact it was"
                f" {kept}: somebody may be in between. If it was really set up anew, remove"
                f" {self._file(address)} and try again"
            )

    def keep(self, address: RendezvousAddress, seen: bytes) -> None:
        """Remember ``seen`` for ``address`` if nothing is pinned yet."""
        if address.pinned is not None or self._kept(address) is not None:
            return
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self._file(address)
        draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        draft.write_text(seen.hex() + "\n", "ascii")
        os.replace(draft, path)

    def _kept(self, address: RendezvousAddress) -> str | None:
        try:
            return self._file(address).read_text("ascii").strip()
        except FileNotFoundError:
            return None

    def _file(self, address: RendezvousAddress) -> Path:
        return self._directory / quote(str(address), safe="[]:")


async def fetch_certificate(address: RendezvousAddress) -> tuple[bytes, str]:
    """The DER of the certificate that is shown at ``address``, and the literal address that answered.

    Nothing about it is checked yet. Raises Unreachable.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # pinned by the caller instead; no authority vouches for it
    context.set_alpn_protocols(["h2"])
    try:
        # No server name: the certificate is for no name, and gRPC complains of every one it does not know.
        _, writer = await asyncio.open_connection(
            address.host, address.port, ssl=context, server_hostname="", happy_eyeballs_delay=_NEXT_ADDRESS_S
        )
    except ssl.SSLError as error:
        raise Unreachable(
            f"what answers at {address} does not speak TLS ({error.reason}): is it kafila-rendezvous?"
        ) from error
    except OSError as error:
        raise unreachable(address, _reason(error)) from error
    try:
        der: bytes | None = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        host = str(writer.get_extra_info("peername")[0])
    finally:
        writer.close()
    if not der:
        raise Unreachable(f"what answers at {address} shows no certificate")
    return der, host


def _reason(error: OSError) -> str:
    """The system's words for it; asyncio's own repeat the address as a tuple."""
    if isinstance(error, socket.gaierror) or error.errno is None:
        return error.strerror or str(error)
    return os.strerror(error.errno).lower()


def unreachable(address: RendezvousAddress, why: str) -> Unreachable:
    """The error for a rendezvous that does not answer, with what to check."""
    return Unreachable(
        f"cannot reach the rendezvous at {address}: {why}. Check that kafila-rendezvous runs there, that"
        f" the address is right (--rendezvous HOST:PORT), and that TCP port {address.port} is open to this"
        " machine"
    )
