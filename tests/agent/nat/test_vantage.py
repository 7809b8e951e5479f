from __future__ import annotations

import asyncio

from kafila_agent.edge.endpoint import EdgeEndpoint
from kafila_agent.identity import load_identity
from kafila_agent.nat.vantage import Vantage
from kafila_rendezvous.circuits import Circuits
from kafila_rendezvous.datagrams import serve_datagrams


async def test_the_rendezvous_is_asked_again_and_again_once_it_is_known(tmp_path):
    server = await serve_datagrams(Circuits(), ["127.0.0.1"], 0)
    endpoint = EdgeEndpoint.open(load_identity(tmp_path, "desk"), "127.0.0.1")
    where: list[tuple[str, int]] = []
    vantage = Vantage(endpoint, lambda: where[0] if where else None)
    task = asyncio.create_task(vantage.keep(every_s=0.001))
    try:
        await asyncio.sleep(0.02)
        assert vantage.rtt_s is None
        assert server.reflected_datagrams == 0
        where.append(("127.0.0.1", server.port))
        async with asyncio.timeout(10):
            while server.reflected_datagrams < 5 or vantage.rtt_s is None:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert 0 < vantage.rtt_s < 5
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await endpoint.close()
        server.close()
