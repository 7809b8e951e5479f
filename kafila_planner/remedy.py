"""What would make a refused session fit: the smallest single changes, found by asking again.

Each is a bisection over one number with the planner itself as judge, or comes from a table of all orders,
so an answer is never a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from kafila_planner.facts import Fleet
from kafila_planner.fields import MAX_BYTES
from kafila_planner.memory import chain_of
from kafila_planner.ring import Remedy

Fits = Callable[[Fleet], bool]


def remedies(fleet: Fleet, fits: Fits, least_rooms: Mapping[str, int | None]) -> tuple[Remedy, ...]:
    """The longest context, the most users, and for each member given the least room that would do alone."""
    found = []
    context = _largest(fleet.context_tokens - 1, lambda tokens: with_context(fleet, tokens), fits)
    if context:
        found.append(Remedy("context_tokens", context))
    users = _largest(fleet.concurrency - 1, lambda users: replace(fleet, concurrency=users), fits)
    if users:
        found.append(Remedy("concurrency", users))
    rooms = [
        Remedy("memory_bytes", least, member=name, more_bytes=least - _room_of(fleet, name))
        for name, least in least_rooms.items()
        if least is not None
    ]
    return (*found, *sorted(rooms, key=lambda remedy: remedy.more_bytes or 0))


def least_room(fleet: Fleet, name: str, fits: Fits) -> int | None:
    """The least room of one member that would do, all else the same; None if none would."""
    chain = chain_of(fleet)
    everything = min(chain.needs_bytes(0, chain.blocks, True), MAX_BYTES)
    return _smallest(_room_of(fleet, name) + 1, everything, lambda room: fits(with_room(fleet, name, room)))


def with_context(fleet: Fleet, tokens: int) -> Fleet:
    """The fleet at a shorter context: blocks that keep a window keep no more than the context."""
    kept = fleet.model.kv_tokens_per_block
    if kept is not None:
        shorter = tuple(min(count, tokens) for count in kept)
        fleet = replace(fleet, model=replace(fleet.model, kv_tokens_per_block=shorter))
    return replace(fleet, context_tokens=tokens)


def with_room(fleet: Fleet, name: str, memory_bytes: int) -> Fleet:
    """The fleet with one member's room changed."""
    members = (
        replace(member, memory_bytes=memory_bytes) if member.name == name else member
        for member in fleet.members
    )
    return replace(fleet, members=tuple(members))


def _room_of(fleet: Fleet, name: str) -> int:
    return next(member.room_bytes for member in fleet.members if member.name == name)


def _largest(high: int, changed: Callable[[int], Fleet], fits: Fits) -> int:
    """The largest number in 1 ... high whose fleet fits; 0 if none does.

    Less KV cache gives more members room for a block, and each of them then has to hold one: what fits at
    one number need not fit at a smaller one. Among numbers with the same seats it does, so those are
    bisected, from the top.
    """
    while high >= 1:
        seats = _with_room_for_a_block(changed(high))
        low = _smallest(1, high, lambda number: _with_room_for_a_block(changed(number)) == seats)  # noqa: B023
        assert low is not None
        if fits(changed(low)):
            while low < high:
                middle = (low + high + 1) // 2
                low, high = (middle, high) if fits(changed(middle)) else (low, middle - 1)
            return low
        high = low - 1
    return 0


def _with_room_for_a_block(fleet: Fleet) -> int:
    smallest = min(chain_of(fleet).held_bytes)
    return sum(member.room_bytes >= smallest for member in fleet.members)


def _smallest(low: int, high: int, fits: Callable[[int], bool]) -> int | None:
    """The smallest number in low ... high that fits, by bisection; None if high does not."""
    if low > high or not fits(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle + 1, high)
    return low
