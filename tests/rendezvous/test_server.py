"""Sessions over a real rendezvous: gRPC on loopback, every key and signature real."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import urllib.request

import grpc
import pytest
from structlog.testing import capture_logs

from kafila_agent.control import introduction as intro
from kafila_agent.control.charter import countersign, verify_plan
from kafila_agent.control.link import LinkRefused
from kafila_agent.identity import load_identity
from kafila_proto import PROTOCOL, VERSION
from kafila_proto import rendezvous_pb2 as pb
from kafila_proto.association import MAX_BYTES, MAX_MESSAGES
from kafila_proto.certificate import common_name
from kafila_proto.rendezvous_pb2_grpc import RendezvousStub
from kafila_proto.session_code import SessionCode
from kafila_proto.signed import Label
from kafila_rendezvous.outcome import RequestRefused
from kafila_rendezvous.server import Config, PortInUse, start_rendezvous
from kafila_rendezvous.service import check_hello

VERSION_3, VERSION_6 = b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x05"

WRONG = ("no", "words")  # of no code: they are not in the list


async def plan_session(members) -> None:
    """From reports to the plan in everyone's hands, each having verified it."""
    host = members[0]
    for member in members:
        await member.report()
    complete = await host.expect("reports", skip=("member", "Send", "Stopped"))
    await host.send(plan=countersign(complete, host.charter, host.identity))
    for member in members:
        signed = await member.expect("plan")
        member.plan = verify_plan(signed, member.charter, member.own_report, 0)


async def test_session_from_code_to_serving(session):
    members = await session("desk", "lap", "attic")
    desk, lap, attic = members
    assert [entry.name for entry in attic.charter.roster] == ["desk", "lap", "attic"]
    assert desk.charter == lap.charter == attic.charter
    await plan_session(members)
    plan = json.loads(attic.plan.plan_json)
    assert sorted(plan["ring"]) == ["attic", "desk", "lap"]
    assert sum(end - start for start, end in (s["blocks"] for s in plan["stages"])) == 6
    await desk.send(circuit=pb.CircuitRequest(epoch=1, peer=lap.identity.fingerprint))
    own, other = await desk.expect("circuit"), await lap.expect("circuit")
    assert own.circuit_id == other.circuit_id
    assert own.key != other.key
    assert (own.peer, other.peer) == (lap.identity.fingerprint, desk.identity.fingerprint)
    for member in members:
        await member.progress(pb.LOADING)
        await member.progress(pb.READY)
    for member in members:
        assert (await member.expect("serve")).epoch == 1


async def test_wrong_words_three_times_stop_the_host(make_party):
    desk = await make_party("desk")
    code = await desk.create(3)
    wrong = SessionCode(code.number, WRONG)
    for failures in (1, 2, 3):
        stranger = await make_party(f"stranger{failures}")
        stranger.join_soon(wrong)
        assert (await stranger.expect("Refused")).reason == intro.NO_SUCH_CODE
        assert (await desk.expect("AttemptFailed")).failures == failures
    assert "3 attempts" in (await desk.expect("Stopped")).reason
    late = await make_party("late")
    late.join_soon(code)
    assert (await late.expect("Refused")).reason == intro.NO_SUCH_CODE


async def test_a_wrong_number_reads_like_wrong_words(make_party):
    lap = await make_party("lap")
    lap.join_soon(SessionCode("000000", ("walnut", "otter")))
    assert (await lap.expect("Refused")).reason == intro.NO_SUCH_CODE


async def test_joiners_at_once_are_introduced_one_after_the_other(make_party):
    desk = await make_party("desk")
    code = await desk.create(4)
    joiners = [await make_party(name) for name in ("a", "b", "c")]
    for joiner in joiners:
        joiner.join_soon(code)
    names = {(await desk.expect("Admitted", skip=("Send", "charter"))).name for _ in joiners}
    assert names == {"a", "b", "c"}
    for joiner in joiners:
        await joiner.expect("Joined")


async def test_a_member_that_vanishes_from_a_planned_session_is_waited_for_and_comes_back(
    session, rendezvous
):
    members = desk, lap, attic = await session("desk", "lap", "attic")
    await plan_session([desk, lap, attic])
    rendezvous.service._outboxes[lap.identity.fingerprint].finish()
    for other in (desk, attic):
        hold = await other.expect("hold", skip=("member", "Send", "Stopped"))
        assert (hold.epoch, list(hold.absent)) == (2, [lap.identity.fingerprint])
    await lap.expect("lost")
    await lap.expect("attached")  # by itself
    await lap.send(resume=pb.Resume(session_id=lap.session_id))
    for member in members:
        hold = await member.expect("hold", skip=("member",))
        assert (hold.epoch, list(hold.absent)) == (2, [])
        await member.report(epoch=hold.epoch)
    complete = await desk.expect("reports", skip=("member",))
    await desk.send(plan=countersign(complete, desk.charter, desk.identity, known_epoch=1))
    for member in members:
        plan = verify_plan(await member.expect("plan"), member.charter, member.own_report, 1)
        assert plan.epoch == 3


async def serve(members) -> None:
    """From reports to the last word."""
    await plan_session(members)
    for member in members:
        await member.progress(pb.LOADING)
        await member.progress(pb.READY)
    for member in members:
        await member.expect("serve")


async def test_a_stream_that_breaks_costs_a_session_at_work_no_word(session, rendezvous):
    members = desk, lap, attic = await session("desk", "lap", "attic")
    await serve(members)
    outbox = rendezvous.service._outboxes[lap.identity.fingerprint]
    outbox.finish()
    await lap.expect("lost")
    lap.link.post(pb.FromAgent(circuit=pb.CircuitRequest(epoch=1, peer=desk.identity.fingerprint)))
    for number in range(
        40
    ):  # said to a member without a stream, and more than fits between two confirmations
        await desk.progress(pb.SERVING)
        if number % 10 == 0:
            await attic.progress(pb.SERVING)
    assert (await lap.expect("attached", skip=())).goes_on
    assert (await desk.expect("circuit")).peer == lap.identity.fingerprint
    heard = [await lap.expect("member", skip=()) for _ in range(44)]
    assert sum(update.name == "desk" for update in heard) == 40
    await lap.expect("circuit", skip=())
    assert rendezvous.service._outboxes[lap.identity.fingerprint] is outbox
    assert rendezvous.registry.sessions[desk.session_id].session.epoch == 1


async def test_a_process_may_come_again_before_its_stream_is_known_to_be_dead(session, make_party, tmp_path):
    """From another address, say: what was said on the dead stream is not lost, and a copy of the key stays out."""
    members = desk, lap = await session("desk", "lap")
    await serve(members)
    with pytest.raises(LinkRefused, match="lap is attached already"):
        await make_party("copy", lap.identity)
    again = await make_party("again", lap.identity, association_of=lap)
    assert again.link.attachment.goes_on
    assert "ended the stream" in await lap.expect("lost")
    await lap.link.close()
    await desk.progress(pb.SERVING)
    assert (await again.expect("member", skip=())).name == "desk"


async def test_who_has_heard_what_was_never_said_begins_anew(session, rendezvous):
    desk, lap = await session("desk", "lap")
    await serve([desk, lap])
    lap.link._association.heard += 1
    rendezvous.service._outboxes[lap.identity.fingerprint].finish()
    assert not (await lap.expect("attached", skip=("lost", "member"))).goes_on
    assert list((await desk.expect("hold")).absent) == [lap.identity.fingerprint]


async def test_who_leaves_before_the_plan_drops_out_and_another_takes_its_place(session, make_party):
    desk, lap, attic = await session("desk", "lap", "attic")
    for member in (desk, lap):
        await member.report()
    await lap.send(leave=pb.Leave())
    gone = await attic.expect("member", skip=())
    assert (gone.name, gone.progress.state, gone.progress.detail) == ("lap", pb.LEFT, "left the session")
    assert desk.introducing.depart(lap.identity.fingerprint) == "lap"
    await desk.send(charter=desk.next_charter())
    code = await desk.renew()
    attic.learn_charter(await attic.expect("charter"))
    assert [entry.name for entry in attic.charter.roster] == ["desk", "attic"]
    shed = await make_party("shed")
    await shed.join(code)
    for member in (desk, attic):
        while [entry.name for entry in member.charter.roster] != ["desk", "attic", "shed"]:
            skip = ("member", "Send", "Stopped", "Admitted", "created")
            member.learn_charter(await member.expect("charter", skip=skip))
    await attic.report()
    await shed.report()
    complete = await desk.expect("reports", skip=("member", "Send", "Stopped"))
    assert complete.epoch == 2  # the roster is another one
    await desk.send(plan=countersign(complete, desk.charter, desk.identity, known_epoch=1))
    for member in (desk, attic, shed):
        plan = verify_plan(await member.expect("plan"), member.charter, member.own_report, 1)
        assert sorted(json.loads(plan.plan_json)["ring"]) == ["attic", "desk", "shed"]


async def test_who_vanishes_just_before_its_admission_does_not_end_the_session(make_party, rendezvous):
    """The host has put it on the roster; the rendezvous never had it as a member."""
    desk, lap = await make_party("desk"), await make_party("lap")
    code = await desk.create(2)
    admit = rendezvous.registry.receive

    def vanish_before(agent, message, now):
        if message.WhichOneof("message") == "admit":
            lap.link._call.cancel()
            rendezvous.service._carry_out(rendezvous.registry._part(lap.identity.fingerprint, "gone", now))
        return admit(agent, message, now)

    rendezvous.registry.receive = vanish_before
    lap.join_soon(code)
    withdrawn = await desk.expect("Withdrawn", skip=("Send", "Admitted", "Stopped", "problem"))
    assert withdrawn.name == "lap"
    rendezvous.registry.receive = admit
    await desk.send(charter=desk.next_charter())
    desk.learn_charter(await desk.expect("charter", skip=("problem", "Send")))
    assert [entry.name for entry in desk.charter.roster] == ["desk"]
    attic = await make_party("attic")
    await attic.join(await desk.renew())
    assert list(desk.introducing.roster) == ["desk", "attic"]


async def test_the_same_identity_twice_is_refused_by_name(make_party):
    desk = await make_party("desk")
    with pytest.raises(LinkRefused, match="desk is attached already") as refused:
        await make_party("desk", desk.identity)
    assert refused.value.code == "forbidden"


async def test_another_protocol_version_is_refused_naming_both(make_party, monkeypatch):
    monkeypatch.setattr("kafila_rendezvous.service.PROTOCOL", 9)
    with pytest.raises(LinkRefused, match=r"protocol 2.*protocol 9") as refused:
        await make_party("desk")
    assert refused.value.code == "version"
    monkeypatch.undo()
    hello = pb.Hello(protocol=7, version="7.0.0")
    with pytest.raises(RequestRefused, match=r"protocol 2\), the agent 7\.0\.0 \(protocol 7\)"):
        check_hello(hello, b"n", b"f")


def hello_of(identity, nonce: bytes, fingerprint: bytes, **changes) -> pb.Hello:
    fields = {
        "protocol": PROTOCOL,
        "version": VERSION,
        "name": identity.name,
        "certificate": identity.certificate_der,
        "signature": identity.sign(Label.HELLO, nonce + fingerprint),
        "association": bytes(16),
    }
    return pb.Hello(**fields | changes)


def test_a_hello_proves_who_says_it_to_this_rendezvous_now(tmp_path):
    desk, other = load_identity(tmp_path / "a", "desk"), load_identity(tmp_path / "b", "desk")
    nonce, pin = b"n" * 32, b"f" * 32
    check_hello(hello_of(desk, nonce, pin), nonce, pin)
    for hello in (
        hello_of(desk, b"m" * 32, pin),  # played again
        hello_of(desk, nonce, b"e" * 32),  # passed on by another rendezvous
        hello_of(desk, nonce, pin, certificate=other.certificate_der),
        hello_of(desk, nonce, pin, certificate=b""),
        hello_of(desk, nonce, pin, certificate=desk.certificate_der.replace(VERSION_3, VERSION_6)),
        hello_of(desk, nonce, pin, signature=desk.sign(Label.REPORT, nonce + pin)),
        hello_of(desk, nonce, pin, name="not a name"),
        hello_of(desk, nonce, pin, association=b""),
    ):
        with pytest.raises(RequestRefused):
            check_hello(hello, nonce, pin)


async def raw_stream(rendezvous):
    """A stream without an agent behind it, past its Challenge."""
    credentials = grpc.ssl_channel_credentials(rendezvous.certificate.certificate_pem)
    name = common_name(rendezvous.certificate.certificate_der)
    channel = grpc.aio.secure_channel(
        f"127.0.0.1:{rendezvous.grpc_port}", credentials, [("grpc.ssl_target_name_override", name)]
    )
    call = RendezvousStub(channel).Attach()
    assert (await call.read()).WhichOneof("message") == "challenge"
    return channel, call


async def test_a_stream_that_does_not_say_hello_is_ended(rendezvous, monkeypatch):
    monkeypatch.setattr("kafila_rendezvous.service.HELLO_S", 0.05)
    channel, call = await raw_stream(rendezvous)
    assert "no Hello within" in (await call.read()).problem.detail
    assert await call.read() is grpc.aio.EOF
    await channel.close()


async def test_the_first_message_must_be_hello(rendezvous):
    channel, call = await raw_stream(rendezvous)
    await call.write(pb.FromAgent(leave=pb.Leave()))
    assert "must be Hello" in (await call.read()).problem.detail
    assert rendezvous.registry.attached == {}
    await channel.close()


async def test_who_does_not_read_is_dropped_and_the_others_are_told(session, rendezvous):
    desk, lap = await session("desk", "lap")
    await plan_session([desk, lap])
    service = rendezvous.service
    for _ in range(
        MAX_MESSAGES + 1
    ):  # without yielding: nothing is written meanwhile, as to one whose window is full
        service._send(lap.identity.fingerprint, pb.ToAgent(serve=pb.Serve(epoch=9)))
    hold = await desk.expect("hold", skip=("member", "Send", "Stopped"))
    assert list(hold.absent) == [lap.identity.fingerprint]


async def test_who_does_not_read_takes_up_little_memory(session, rendezvous):
    """Two that are one stranger's: one talks, as much as it may at a time, the other does not listen."""
    desk, lap = await session("desk", "lap")
    outbox = rendezvous.service._outboxes[lap.identity.fingerprint]
    said = pb.FromAgent(progress=pb.Progress(state=pb.PROBING, detail="x" * 16_000))
    for _ in range(1000):  # without yielding, as to one whose window is full
        commands = rendezvous.registry.receive(desk.identity.fingerprint, said, 0.0)
        rendezvous.service._carry_out(commands)
        assert outbox._association._bytes <= MAX_BYTES + said.ByteSize()
    assert outbox._association.kept < 1000


async def test_strangers_that_say_nothing_leave_room_for_the_others(rendezvous, make_party, monkeypatch):
    limits = dataclasses.replace(rendezvous.registry.limits, greetings_per_source=3)
    monkeypatch.setattr(rendezvous.registry.presence, "limits", limits)
    silent = [await raw_stream(rendezvous) for _ in range(3)]
    with pytest.raises(LinkRefused, match=r"3 streams from 127\.0\.0\.1 have not said Hello"):
        await make_party("desk")
    assert rendezvous.registry.attached == {}
    for channel, _ in silent:
        await channel.close()
    while rendezvous.registry.presence._greeted:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await make_party("lap")


async def test_a_rendezvous_that_stops_says_so(session, rendezvous):
    desk, lap = await session("desk", "lap")
    await rendezvous.service.close("the rendezvous is stopping")
    for member in (desk, lap):
        closed = await member.expect("closed", skip=("member", "Send", "Stopped", "charter"))
        assert closed.reason == "the rendezvous is stopping"
        assert "ended the stream" in await member.expect("lost")


async def test_more_circuits_than_may_be_are_refused(session, rendezvous):
    members = await session("desk", "lap")
    await plan_session(members)
    rendezvous.service._circuits.max_circuits = 0
    peer = members[1].identity.fingerprint
    await members[0].send(circuit=pb.CircuitRequest(epoch=1, peer=peer))
    problem = await members[0].expect("problem")
    assert (problem.code, problem.request) == ("limit", "circuit")


async def test_circuits_end_with_their_session(session, rendezvous):
    desk, lap = await session("desk", "lap")
    await plan_session([desk, lap])
    await desk.send(circuit=pb.CircuitRequest(epoch=1, peer=lap.identity.fingerprint))
    await lap.expect("circuit")
    circuits = rendezvous.service._circuits
    assert len(circuits) == 1
    await lap.send(leave=pb.Leave())
    await desk.expect("closed", skip=("member", "circuit"))
    assert len(circuits) == 0


async def test_metrics(session, rendezvous):
    await session("desk", "lap")
    url = f"http://127.0.0.1:{rendezvous.metrics_port}/metrics"
    text = await asyncio.to_thread(lambda: urllib.request.urlopen(url).read().decode())
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert values['kafila_rendezvous_sessions{state="forming"}'] == "1.0"
    assert values["kafila_rendezvous_members"] == "2.0"
    assert values["kafila_rendezvous_agents"] == "2.0"
    assert values["kafila_rendezvous_introductions_failed_total"] == "0.0"
    assert values["kafila_rendezvous_relayed_bytes_total"] == "0.0"
    assert values[f'kafila_build_info{{version="{VERSION}"}}'] == "1.0"


async def test_taken_ports_are_named_and_nothing_is_left(rendezvous, tmp_path):
    base = {"state_dir": tmp_path / "rv2", "host": "127.0.0.1", "port": 0, "metrics_port": 0}
    for field, option in (("port", "--port"), ("metrics_port", "--metrics-port"), ("udp_port", "--udp-port")):
        taken = rendezvous.grpc_port if field == "port" else getattr(rendezvous, field)
        with pytest.raises(PortInUse, match=f"{taken}.*{option}"):
            await start_rendezvous(Config(**base | {field: taken}))
    server = await start_rendezvous(Config(**base))
    await server.close()
    again = await start_rendezvous(Config(**base))
    await again.close()
    assert again.certificate.fingerprint == server.certificate.fingerprint


async def test_what_a_member_says_cannot_drive_the_others_terminals(session):
    desk, lap = await session("desk", "lap")
    await plan_session([desk, lap])
    await lap.send(leave=pb.Leave(reason="\x1b[2Jbye\n"))
    closed = await desk.expect("closed", skip=("member", "Send", "Stopped"))
    assert closed.reason == "lap left the session:  [2Jbye "


async def test_what_the_rendezvous_says_of_itself_cannot_drive_a_terminal(make_party, monkeypatch):
    monkeypatch.setattr("kafila_rendezvous.service.PROTOCOL", 9)
    monkeypatch.setattr("kafila_rendezvous.service.VERSION", "9\x1b]0;owned\x07")
    with pytest.raises(LinkRefused, match="protocol 9") as refused:
        await make_party("desk")
    assert str(refused.value).isprintable()


async def test_logs_tell_what_happened_and_no_code(make_party):
    with capture_logs() as logs:
        desk = await make_party("desk")
        code = await desk.create(2)
        lap = await make_party("lap")
        lap.join_soon(SessionCode(code.number, WRONG))
        await lap.expect("Refused")
        await lap.join(code)
        await desk.send(leave=pb.Leave(reason="bedtime"))
        await lap.expect("closed")
    assert {entry["event"] for entry in logs} == {"attached", "session admits", "session over"}
    text = json.dumps(logs)
    assert "bedtime" in text
    for secret in (code.number, r"\W{1,6}".join(code.words)):  # a word alone may be one of the log's own
        assert not re.search(rf"\b{secret}\b", text)
