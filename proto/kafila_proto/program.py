"""What both programs do alike: write their log, and go on until they are told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Coroutine

import structlog


def configure_logs(level: int = logging.INFO) -> None:
    """JSON lines on stderr, or plain lines on a terminal, which no text of others can drive."""
    renderer: structlog.typing.Processor = structlog.processors.JSONRenderer()
    if sys.stderr.isatty():
        renderer = structlog.dev.ConsoleRenderer(repr_native_str=True)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


class Ending:
    """When a program is to end: ``asked`` is set by SIGTERM, SIGINT, and by the end of standard input if so wanted.

    A parent's end is then ours. SIGTERM leaves time for what is under way; a second one, and the others, do not.
    """

    def __init__(self, *, until_stdin_closes: bool = False) -> None:
        self.asked, self._hurried = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._terminate)
        loop.add_signal_handler(signal.SIGINT, self._hurry)
        if until_stdin_closes:
            threading.Thread(target=self._await_end_of_stdin, args=(loop,), daemon=True).start()

    async def unless_hurried(self, work: Coroutine[None, None, None]) -> None:
        """Until ``work`` is done, or there is no time for it."""
        tasks = [asyncio.create_task(work), asyncio.create_task(self._hurried.wait())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()

    def _terminate(self) -> None:
        (self._hurried if self.asked.is_set() else self.asked).set()

    def _hurry(self) -> None:
        self.asked.set()
        self._hurried.set()

    def _await_end_of_stdin(self, loop: asyncio.AbstractEventLoop) -> None:
        while os.read(sys.stdin.fileno(), 4096):
            pass
        loop.call_soon_threadsafe(self._hurry)
