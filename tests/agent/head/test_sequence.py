from __future__ import annotations

import itertools

import pytest

from kafila_agent.head.sequence import Event, IllegalEvent, Sequence, State

LEGAL = {
    (State.WAITING, Event.ADMIT): State.PREFILL,
    (State.WAITING, Event.END): State.FINISHED,
    (State.PREFILL, Event.FIRST_TOKEN): State.DECODE,
    (State.PREFILL, Event.END): State.FINISHED,
    (State.DECODE, Event.END): State.FINISHED,
}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)))
def test_every_event_moves_on_or_raises(state, event):
    sequence = Sequence(5, (1, 2), state=state)
    if (state, event) in LEGAL:
        sequence.handle(event)
        assert sequence.state is LEGAL[state, event]
    else:
        with pytest.raises(IllegalEvent, match=f"sequence 5: {event} cannot happen while {state}"):
            sequence.handle(event)
        assert sequence.state is state
