"""What a member keeps of its session for a restart."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
import typer

from kafila_agent.control.charter import make_charter
from kafila_agent.ctl.main import build_app
from kafila_agent.identity import load_identity
from kafila_agent.session.kept import FILE, Kept, keep, recall, start_anew
from kafila_proto.rendezvous_pb2 import ModelReference, Signed


@pytest.fixture
def identities(tmp_path):
    return {name: load_identity(tmp_path / name, name) for name in ("desk", "lap", "attic")}


@pytest.fixture
def kept(identities):
    host = identities["desk"]
    signed = make_charter(
        host,
        session_id=b"s" * 16,
        revision=4,
        expected_members=2,
        context_tokens=1024,
        concurrency=2,
        model=ModelReference(name="tiny", dtype="bfloat16/int8", facts_json="{}"),
        roster=[(name, identities[name].fingerprint) for name in ("desk", "lap")],
        objective="latency",
    )
    return Kept(signed, 3, Path("/models/tiny"))


def test_it_is_there_again_for_each_member_and_for_nobody_else(identities, kept, tmp_path):
    keep(tmp_path, kept)
    assert recall(tmp_path, identities["desk"]) == recall(tmp_path, identities["lap"]) == kept
    assert [entry.name for entry in kept.charter.roster] == ["desk", "lap"]
    assert recall(tmp_path, identities["attic"]) is None
    renamed = load_identity(tmp_path / "lap", "laptop")
    assert recall(tmp_path, renamed) is None


def test_it_is_the_owner_s_alone_replaced_whole_and_forgotten(identities, kept, tmp_path):
    keep(tmp_path, kept)
    later = Kept(kept.signed_charter, 5, kept.model)
    keep(tmp_path, later)
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    assert recall(tmp_path, identities["lap"]) == later
    keep(tmp_path, None)
    keep(tmp_path, None)
    assert recall(tmp_path, identities["lap"]) is None
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == []  # no draft either


def test_what_the_host_did_not_sign_is_not_believed(identities, kept, tmp_path):
    forged = kept.charter
    forged.roster[1].fingerprint = identities["attic"].fingerprint
    forged.roster[1].name = "attic"
    signed = Signed(
        payload=forged.SerializeToString(),
        certificate=kept.signed_charter.certificate,
        signature=kept.signed_charter.signature,
    )
    keep(tmp_path, Kept(signed, 3, kept.model))
    assert recall(tmp_path, identities["attic"]) is None


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "null", "\0", '{"charter": "", "epoch": 1, "model": "x"}', '{"charter": 1}', "[" * 9999],
)
def test_a_damaged_file_is_as_none(identities, kept, tmp_path, text):
    (tmp_path / FILE).write_text(text)
    assert recall(tmp_path, identities["lap"]) is None
    keep(tmp_path, kept)
    fields = json.loads((tmp_path / FILE).read_text())
    for name in fields:
        (tmp_path / FILE).write_text(json.dumps(fields | {name: [text]}))
        assert recall(tmp_path, identities["lap"]) is None


def test_the_host_gets_the_very_command_and_the_others_whom_to_ask(kept):
    sentence = start_anew(kept.charter, "desk", None)
    assert sentence == (
        "create it anew with `kafila-ctl session create --model tiny --members 2 --context 1024 --concurrency 2"
        " --dtype bfloat16 --quant int8 --objective latency`"
    )
    create = typer.main.get_command(build_app(["session"])).commands["session"].commands["create"]
    create.make_context("create", sentence.split("`")[1].split()[3:])
    assert start_anew(kept.charter, "lap", None) == "desk creates it anew, then join with its new code"
    charter = kept.charter
    charter.draft.name = "tinier"
    sentence = start_anew(charter, "desk", Path("/my models/tiny"))
    assert "--model '/my models/tiny' --members 2" in sentence
    assert sentence.endswith("--draft tinier`")


def test_what_cannot_be_written_leaves_nothing_behind(kept, tmp_path):
    (tmp_path / FILE).mkdir()
    before = set(tmp_path.iterdir())
    with pytest.raises(OSError, match=FILE):
        keep(tmp_path, kept)
    assert set(tmp_path.iterdir()) == before
