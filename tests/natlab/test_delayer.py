"""What the delayer is told while packets wait."""

from __future__ import annotations

import os
import sys

import pytest

from tests.natlab.delayer import Orders


def test_what_comes_in_one_breath_is_taken_at_once(monkeypatch):
    reading, writing = os.pipe()
    with os.fdopen(reading) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        orders = Orders()
        os.write(writing, b"one\ntwo\nthr")
        assert orders.take() == ["one", "two"]
        os.write(writing, b"ee\n")
        assert orders.take() == ["three"]
        os.close(writing)
        with pytest.raises(EOFError):
            orders.take()
