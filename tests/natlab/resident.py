"""Code of this process at home in a node of the laboratory: a thread in its network namespace, with an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tests.natlab.namespace import enter

T = TypeVar("T")


class Resident:
    """``names`` is the node's DNS: the literal addresses of each host that it can resolve."""

    def __init__(self, namespace: str, names: dict[str, tuple[str, ...]] | None = None):
        self._namespace = namespace
        self._names = names or {}
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._live, name=namespace, daemon=True)
        self._thread.start()
        self._ready.wait()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Run a coroutine there; await the future on the loop that calls."""
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self.loop))

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there, and wait for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    async def call(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function there that does not wait."""

        async def called() -> T:
            return function(*args)

        return await self.start(called())

    def close(self) -> None:
        """End the loop and its thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    def _live(self) -> None:
        enter(self._namespace)
        self.loop = asyncio.new_event_loop()
        resolve = self.loop.getaddrinfo

        async def getaddrinfo(host: str, port: int, **options: Any) -> list[Any]:
            found = [await resolve(literal, port, **options) for literal in self._names.get(host, (host,))]
            return [each for several in found for each in several]

        self.loop.getaddrinfo = getaddrinfo  # type: ignore[method-assign]
        self._ready.set()
        self.loop.run_forever()
        self.loop.close()
