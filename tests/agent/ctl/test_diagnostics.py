"""What a bug report does not say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kafila_agent.ctl.diagnostics import private_words, redact
from kafila_proto import agent_pb2 as pb

WORDS = {
    "annas-laptop": "member-1",
    "anna": "<user>",
    "/home/anna": "<home>",
    "rv.example.org": "<rendezvous>",
}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("annas-laptop left: no path", "member-1 left: no path"),
        ("the code is now 482913-otter-lamp", "the code is now <code>"),
        ("cannot reach 203.0.113.7:7470", "cannot reach <address>:7470"),
        ("bound to [2001:db8::2]:7470 and ::1", "bound to [<address>]:7470 and <address>"),
        ("at fe80::1ff:fe23:4567:890a now", "at <address> now"),
        ("has no model in /home/anna/models/x.gguf", "has no model in <home>/models/x.gguf"),
        ("read /home/bert/models/x.gguf", "read <path>"),
        ("82 GB free at /var/lib/kafila, 5 MB/s", "82 GB free at <path>, 5 MB/s"),
        ("anna may not, hannah may", "<user> may not, hannah may"),
        ("rv.example.org:7470 refused", "<rendezvous>:7470 refused"),
        ("by the key " + "ab" * 32, "by the key <hex>"),
        ("at 12:30:45 UTC took 1.5 s of 3", "at 12:30:45 UTC took 1.5 s of 3"),
    ],
)
def test_what_is_private_is_replaced_and_the_rest_is_not(text, told):
    assert redact({"a": [text]}, WORDS) == {"a": [told]}


def test_fields_that_tell_who_and_where_are_left_out_at_any_depth():
    report = {
        "code": "x",
        "members": [{"name": "annas-laptop", "nat": "f00", "site": "annas-laptop", "rtt_s": 1.5}],
    }
    assert redact(report, WORDS) == {"members": [{"name": "member-1", "rtt_s": 1.5}]}


def test_members_of_the_plan_and_of_the_roster_get_one_name_each():
    fleet = {"members": [{"name": "annas-laptop"}, {"name": "desk"}]}
    status = pb.Status(name="desk", rendezvous="rv.example.org:7470")
    status.session.fleet_json = json.dumps(fleet)
    status.session.members.add(name="desk")
    words = private_words(status)
    assert (words["desk"], words["annas-laptop"], words["rv.example.org"]) == (
        "member-1",
        "member-2",
        "<rendezvous>",
    )
    assert words[str(Path.home())] == "<home>"
