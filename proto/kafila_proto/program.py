"""What both programs do alike: write their log, and go on until they are told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading

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


def stop_signal(*, until_stdin_closes: bool = False) -> asyncio.Event:
    """Set by SIGINT or SIGTERM, and by the end of standard input if so asked: a parent's end is then ours."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    if until_stdin_closes:
        threading.Thread(target=_await_end_of_stdin, args=(loop, stop), daemon=True).start()
    return stop


def _await_end_of_stdin(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    loop.call_soon_threadsafe(stop.set)
