"""Values that parsers do not expect: JSON of every kind, and a good document with one place spoilt."""

from __future__ import annotations

import copy

from hypothesis import strategies as st

NUMBERS = st.one_of(
    st.integers(),
    st.floats(),
    st.sampled_from([0, -1, 2**31, 2**63, 2**64, 10**400, 1e308, -1e308, float("inf"), float("nan"), True]),
)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=8))
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


def places(value, at=()):
    """The path to every value inside ``value``."""
    yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*at, key))


@st.composite
def spoilt(draw, document):
    """``document`` with one value replaced, or left out."""
    path = draw(st.sampled_from([at for at in places(document) if at]))
    result = copy.deepcopy(document)
    holder = result
    for key in path[:-1]:
        holder = holder[key]
    if draw(st.integers(0, 4)) == 0:
        del holder[path[-1]]
    else:
        holder[path[-1]] = draw(JSON)
    return result


@st.composite
def mutated(draw, samples):
    """Bytes of one of ``samples`` with a few changed, some cut off or some put in; sometimes anything."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=256))
    data = bytearray(draw(st.sampled_from(samples)))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(0, len(data) - 1)))
        kind = draw(st.sampled_from(["byte", "word", "cut", "insert"]))
        if kind == "byte" and data:
            data[place] = draw(st.integers(0, 255))
        elif kind == "word":
            word = draw(st.sampled_from([0, 1, 2**16, 2**31, 2**32 - 1, 2**60, 2**63, 2**64 - 1]))
            data[place : place + 8] = word.to_bytes(8, "little")
        elif kind == "cut":
            del data[place:]
        else:
            data[place:place] = draw(st.binary(max_size=16))
    return bytes(data)
