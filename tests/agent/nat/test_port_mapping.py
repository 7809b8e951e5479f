"""Routers that refuse, vanish or are not there: nothing to complain about. A real one is in tests/natlab."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from kafila_agent.nat import port_mapping
from kafila_agent.nat.port_mapping import PortMapping


@dataclass
class Router:
    """Says what it is told to, as the library would."""

    taken: set[int] = field(default_factory=set)
    trouble: str = ""
    held: dict[int, int] = field(default_factory=dict)
    address: str = "198.51.100.7"
    lanaddr: str = "192.168.1.5"
    discoverdelay: int = 0

    def discover(self) -> int:
        return 1

    def selectigd(self) -> str:
        return ""

    def externalipaddress(self) -> str:
        if self.trouble:
            raise Exception(self.trouble)
        return self.address

    def addportmapping(self, outer, protocol, host, inner, text, remote, lease_s) -> bool:
        if outer in self.taken:
            raise Exception("ConflictInMappingEntry")
        self.held[outer] = inner
        return True

    def deleteportmapping(self, outer, protocol) -> bool:
        del self.held[outer]
        return True


async def mapped(router: Router, port: int = 4000):
    mapping = PortMapping(port, router)
    task = asyncio.create_task(mapping.keep())
    return mapping, task, await mapping.first_address()


async def end(task: asyncio.Task) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(("taken", "outer"), [(set(), 4000), ({4000, 4001}, 4002)])
async def test_a_port_is_had_and_given_back(taken, outer):
    router = Router(taken)
    _, task, address = await mapped(router)
    assert address == ("198.51.100.7", outer)
    assert router.held == {outer: 4000}
    await end(task)
    assert router.held == {}


@pytest.mark.parametrize("router", [Router(trouble="Socket error"), Router(taken=set(range(3990, 4100)))])
async def test_a_router_that_refuses_is_let_be(router):
    mapping, task, address = await mapped(router)
    assert address is None
    assert not task.done()
    await end(task)
    assert mapping.address is None


async def test_a_router_that_is_offline_itself_is_asked_for_nothing():
    router = Router(address="")
    _, task, address = await mapped(router)
    assert (address, router.held) == (None, {})
    await end(task)


async def test_a_port_is_given_back_after_trouble_too(monkeypatch):
    monkeypatch.setattr(port_mapping, "RENEW_S", 0.0)
    router = Router()
    mapping, task, address = await mapped(router)
    assert address == ("198.51.100.7", 4000)
    monkeypatch.setattr(port_mapping, "find_gateway", lambda: None)
    router.trouble = "it reboots"
    async with asyncio.timeout(10):
        while mapping.address is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    await end(task)
    assert router.held == {}
