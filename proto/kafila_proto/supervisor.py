"""What a supervisor such as systemd is told of a program (sd_notify(3)); nothing where there is none."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Mapping


class Supervisor:
    """Tells by datagrams to ``NOTIFY_SOCKET``, and every half of ``WATCHDOG_USEC`` that the event loop turns."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.watchdog_s = int(environment.get("WATCHDOG_USEC", "0")) / 1e6 if ours else 0.0
        self._status = ""

    def ready(self) -> None:
        """The program serves."""
        self._tell("READY=1")

    def stopping(self) -> None:
        """The program has begun to end."""
        self._tell("STOPPING=1")

    def status(self, text: str) -> None:
        """What it is doing, in a line; said again only when it changes."""
        if text != self._status:
            self._status = text
            self._tell(f"STATUS={text}")

    async def keep_alive(self) -> None:
        """Feed the watchdog for ever, if there is one."""
        while self.watchdog_s:
            self._tell("WATCHDOG=1")
            await asyncio.sleep(self.watchdog_s / 2)

    def _tell(self, line: str) -> None:
        if not self._address:
            return
        # One that does not listen, or no longer, must neither hold the event loop up nor end the program.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(line.encode(), self._address)
