from __future__ import annotations

from kafila_agent.view.sentences import guessing_line
from kafila_proto import agent_pb2 as pb


def test_how_far_is_guessed_ahead_and_what_that_promises():
    guessing = pb.Guessing(rows=5, right_share=0.9, circuit_s=0.2, interval_s=0.04, gain=3.571)
    assert guessing_line(guessing) == (
        "guessing ahead, with up to 5 rows in the ring (with 90% of the guesses right 3.57 times as fast:"
        " a row takes 200 ms round the ring, another can follow after 40 ms)"
    )


def test_why_nothing_is_guessed():
    unknown = pb.Guessing(reason="too few tokens have gone round the ring to know its tempo", right_share=0.8)
    assert guessing_line(unknown) == f"not guessing ahead: {unknown.reason}"
    idle = pb.Guessing(reason="less than 5% would be gained", circuit_s=0.2, interval_s=0.2, gain=1.0)
    assert guessing_line(idle).startswith("not guessing ahead: less than 5% would be gained (with 0% of")
