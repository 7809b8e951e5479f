"""What the doctor concludes where that can be told without an agent; the whole is in tests/ring/test_service.py."""

from __future__ import annotations

import datetime
import shutil
from collections import namedtuple

import pytest

from kafila_agent.checks import BAD, DOUBTFUL, OK, clock, disk, kernels
from kafila_agent.identity import load_identity

Usage = namedtuple("Usage", "total used free")


@pytest.mark.parametrize(("days", "verdict"), [(-400, BAD), (-3, BAD), (0, OK), (400, OK)])
def test_a_clock_before_the_agents_own_beginning_is_wrong(tmp_path, days, verdict):
    der = load_identity(tmp_path, "desk").certificate_der
    now = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    check = clock(der, now)
    assert check.verdict == verdict
    assert f"{now:%Y-%m-%d}" in check.finding
    assert ("timedatectl" in check.next_step) == (verdict == BAD)


def test_a_full_disk_is_doubtful(tmp_path, monkeypatch):
    assert disk(tmp_path).verdict == OK
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**12, 10**12, 5_000_000))
    check = disk(tmp_path)
    assert (check.verdict, check.next_step) == (DOUBTFUL, "make room there")
    assert "5 MB free" in check.finding


def test_a_machine_without_compiled_kernels_is_told_what_that_means():
    assert kernels(True).verdict == OK
    check = kernels(False)
    assert check.verdict == DOUBTFUL
    assert "to the bit" in check.finding
    assert "gcc" in check.next_step
