"""Parties of a test: agents with real keys and links that follow the protocol unless told otherwise."""

from __future__ import annotations

import asyncio
import json
import secrets

from kafila_agent.control import introduction as intro
from kafila_agent.control.charter import make_charter, make_report, verify_charter
from kafila_agent.control.link import RendezvousLink
from kafila_agent.identity import Identity
from kafila_proto import rendezvous_pb2 as pb
from kafila_proto.certificate import make_certificate
from kafila_proto.session_code import SessionCode, make_words

PATIENCE_S = 10.0
MODEL = {
    "name": "tiny",
    "blocks": 6,
    "block_bytes": 1000,
    "head_bytes": 500,
    "kv_bytes_per_token_per_block": 1,
}


def make_identity(name: str) -> Identity:
    return Identity(name, make_certificate("kafila-agent"))


def member_json(name: str, **changes) -> str:
    facts = {
        "name": name,
        "bandwidth_bytes_per_s": 1e9,
        "overhead_s": 1e-4,
        "flops_per_s": 1e10,
        "memory_bytes": 10**6,
        "rendezvous_rtt_s": 0.001,
        "mapping": "endpoint-independent",
        "filtering": "endpoint-independent",
    }
    return json.dumps(facts | changes)


class Party:
    """One agent of a test: its link, its introductions, and what has reached it, in ``inbox``."""

    def __init__(self, address: str, name: str, state_dir, identity: Identity | None = None) -> None:
        self.name = name
        self.identity = identity or make_identity(name)
        self.link = RendezvousLink(address, self.identity, state_dir)
        self.link.on_message = self.receive
        self.link.on_lost = lambda reason: self.inbox.put_nowait(("lost", reason))
        self.link.on_attached = lambda attachment: self.inbox.put_nowait(("attached", attachment))
        self.inbox: asyncio.Queue = asyncio.Queue()
        self.session_id = b""
        self.roster: dict[str, bytes] = {}
        self.charter: pb.Charter | None = None
        self.introducing: intro.HostIntroduction | intro.JoinerIntroduction | None = None
        self.revision = 0

    async def attach(self):
        return await self.link.attach()

    @property
    def party(self) -> intro.Party:
        fingerprint = self.link.attachment.rendezvous_fingerprint
        return intro.Party(self.name, self.identity.certificate_der, fingerprint)

    def receive(self, message: pb.ToAgent) -> None:
        kind = message.WhichOneof("message")
        if kind == "introduction" and self.introducing is not None:
            now = asyncio.get_running_loop().time()
            self.carry_out(self.introducing.handle(message.introduction, now))
        elif kind == "problem" and message.problem.request == "join":
            self.carry_out(self.introducing.refuse(message.problem.code, message.problem.detail))
        else:
            self.inbox.put_nowait((kind, getattr(message, kind)))

    def carry_out(self, commands) -> None:
        for command in commands:
            if isinstance(command, intro.Send):
                self.link.post(command.message)
            elif isinstance(command, intro.Admitted):
                self.link.post(pb.FromAgent(charter=self.next_charter()))
            self.inbox.put_nowait((type(command).__name__, command))

    async def send(self, **fields) -> None:
        self.link.post(pb.FromAgent(**fields))
        await self.link.flush()

    async def expect(self, kind: str, *, skip: tuple[str, ...] = ("member", "Send")):
        """The next thing that reached this party, which must be ``kind``."""
        while True:
            found, value = await asyncio.wait_for(self.inbox.get(), PATIENCE_S)
            if found == kind:
                return value
            assert found in skip, f"{self.name} got {found} {value} instead of {kind}"

    async def create(self, members: int) -> SessionCode:
        """Host a session of ``members`` and admit whoever knows the code returned."""
        self.session_id = secrets.token_bytes(16)
        await self.send(create=pb.CreateSession(session_id=self.session_id, expected_members=members))
        created = await self.expect("created")
        words = make_words()
        self.introducing = intro.HostIntroduction(self.party, self.session_id, words, members)
        self.members = members
        await self.send(charter=self.next_charter())
        self.learn_charter(await self.expect("charter"))
        return SessionCode(created.number, words)

    async def renew(self) -> SessionCode:
        """A new code for the session that this party hosts."""
        words = make_words()
        self.carry_out(self.introducing.renew(words))
        request = pb.CreateSession(session_id=self.session_id, expected_members=self.members)
        await self.send(create=request)
        skip = ("member", "Send", "Stopped", "Admitted", "charter", "problem")
        return SessionCode((await self.expect("created", skip=skip)).number, words)

    def next_charter(self, **changes) -> pb.Signed:
        self.revision += 1
        fields = {
            "session_id": self.session_id,
            "revision": self.revision,
            "expected_members": self.members,
            "context_tokens": 16,
            "concurrency": 2,
            "model": pb.ModelReference(name="tiny", dtype="float32", facts_json=json.dumps(MODEL)),
            "roster": list(self.introducing.roster.items()),
        }
        return make_charter(self.identity, **fields | changes)

    def join_soon(self, code: SessionCode) -> None:
        if self.introducing is None:
            self.introducing = intro.JoinerIntroduction(self.party)
        self.carry_out(self.introducing.join(code, asyncio.get_running_loop().time()))

    async def join(self, code: SessionCode) -> intro.Joined:
        """Join, and learn the host's charter."""
        self.join_soon(code)
        joined = await self.expect("Joined")
        self.session_id, self.host = joined.session_id, joined.host_fingerprint
        self.learn_charter(await self.expect("charter"))
        return joined

    def learn_charter(self, signed: pb.Signed) -> None:
        host = getattr(self, "host", self.identity.fingerprint)
        known = self.charter.revision if self.charter else 0
        self.charter = verify_charter(signed, host, known, session_id=self.session_id)

    async def report(self, problem: str = "", epoch: int = 0, **facts) -> pb.Signed:
        self.own_report = make_report(
            self.identity,
            session_id=self.session_id,
            member_json="" if problem else member_json(self.name, **facts),
            problem=problem,
            epoch=epoch,
        )
        await self.send(report=self.own_report)
        return self.own_report

    async def progress(self, state: int, epoch: int = 1) -> None:
        await self.send(progress=pb.Progress(epoch=epoch, state=state))

    async def close(self) -> None:
        await self.link.flush()
        await self.link.close()
