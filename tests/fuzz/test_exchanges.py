"""What a member may send as a request or an answer to be carried: understood, or dropped with one error."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from kafila_agent.api import carry
from tests.fuzz.values import JSON, mutated, spoilt

REQUEST = {
    "method": "POST",
    "path": "/v1/chat/completions",
    "query": "a=b",
    "headers": [["content-type", "application/json"], ["accept", "*/*"]],
}
ANSWER = {"status": 200, "headers": [["content-type", "text/event-stream"]]}
SAMPLES = [carry._encode_head(head) + b"body" for head in (REQUEST, ANSWER)]


class Pieces:
    """An exchange that has come in these pieces."""

    def __init__(self, data: bytes, size: int) -> None:
        self._pieces = [data[at : at + size] for at in range(0, len(data), size)]

    async def receive(self) -> bytes | None:
        return self._pieces.pop(0) if self._pieces else None


def take(data: bytes, size: int) -> None:
    try:
        head, rest = asyncio.run(carry._read_head(Pieces(data, size)))
    except carry.CarryError:
        return
    assert data[4 + int.from_bytes(data[:4]) :].startswith(
        rest
    )  # what of the body came with the head's last piece
    for read in (
        lambda: carry._scope(head, "lap")["path"].startswith("/v1/"),
        lambda: carry._response_start(head),
    ):
        try:
            assert read()
        except carry.CarryError:
            continue


@given(mutated(SAMPLES), st.integers(1, 64))
def test_any_bytes(data, size):
    take(data, size)


@given(JSON | spoilt(REQUEST) | spoilt(ANSWER))
def test_any_head(head):
    take(carry._encode_head(head), 1000)


def test_a_head_that_is_nested_beyond_reason():
    text = b"[" * 30_000
    take(len(text).to_bytes(4) + text, 1000)
