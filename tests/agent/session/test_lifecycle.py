import itertools

import pytest

from kafila_agent.session.lifecycle import Command, Event, IllegalEvent, Lifecycle, State
from kafila_proto import rendezvous_pb2

WAY = [
    (Event.CHARTERED, State.PROBING, Command.PROBE),
    (Event.PROBED, State.WAITING, Command.SEND_REPORT),
    (Event.PLANNED, State.CONNECTING, Command.CONNECT),
    (Event.CONNECTED, State.LOADING, Command.LOAD),
    (Event.LOADED, State.READY, None),
    (Event.SERVE, State.SERVING, Command.SERVE),
    (Event.END, State.LEFT, Command.STOP),
]


def test_the_whole_way():
    member = Lifecycle()
    for event, state, command in WAY:
        assert member.handle(event) is command
        assert member.state is state


@pytest.mark.parametrize("state", [state for state in State if state is not State.LEFT])
def test_a_member_can_leave_from_every_state(state):
    member = Lifecycle(state)
    assert member.handle(Event.END) is Command.STOP
    assert member.state is State.LEFT


@pytest.mark.parametrize("state", [s for s in State if State.PROBING <= s <= State.SERVING])
def test_whoever_has_the_charter_can_be_held_and_then_reports_anew(state):
    member = Lifecycle(state)
    assert member.handle(Event.HOLD) is None
    assert member.state is State.HELD
    assert member.handle(Event.ALL_BACK) is Command.PROBE
    assert member.state is State.PROBING


def test_whatever_the_table_does_not_name_is_refused_by_name():
    legal = {(State.JOINING, Event.CHARTERED)} | {
        (before, event) for (_, before, _), (event, _, _) in itertools.pairwise(WAY)
    }
    legal |= {(state, Event.HOLD) for state in State if State.PROBING <= state <= State.SERVING}
    legal.add((State.HELD, Event.ALL_BACK))
    for state in State:
        for event in Event:
            if (state, event) in legal or (event is Event.END and state is not State.LEFT):
                continue
            with pytest.raises(IllegalEvent, match=f"{event.name}.*{state.name}"):
                Lifecycle(state).handle(event)


def test_states_are_those_of_the_wire():
    assert {state.name: state.value for state in State} == {
        name: value for name, value in rendezvous_pb2.MemberState.items() if value
    }
