from __future__ import annotations

from pathlib import Path

import psutil

from kafila_agent.probe.room import cgroup_rooms, measure_room_bytes

GIB = 1 << 30


def _group(place: Path, **files: object) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (place / name.replace("__", ".")).write_text(f"{text}\n")


def test_every_enclosing_v2_group_counts_and_its_page_cache_does_not(tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    _group(
        root / "a", memory__max=8 * GIB, memory__current=3 * GIB, memory__stat=f"anon 1\ninactive_file {GIB}"
    )
    _group(root / "a" / "b", memory__max="max", memory__current=GIB)
    _group(root / "a" / "b" / "c", memory__max=4 * GIB, memory__current=GIB)
    own = tmp_path / "own"
    own.write_text("0::/a/b/c\n")
    assert list(cgroup_rooms(root, own)) == [3 * GIB, 6 * GIB]


def test_the_memory_controller_of_v1_counts(tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    _group(
        root / "memory" / "box",
        memory__limit_in_bytes=2 * GIB,
        memory__usage_in_bytes=GIB,
        memory__stat=f"total_inactive_file {GIB // 2}",
    )
    own = tmp_path / "own"
    own.write_text("5:cpu,cpuacct:/box\n4:memory:/box\n")
    assert list(cgroup_rooms(root, own)) == [GIB + GIB // 2]


def test_a_machine_without_control_groups_has_no_such_limit(tmp_path: Path) -> None:
    assert list(cgroup_rooms(tmp_path, tmp_path / "absent")) == []


def test_room_leaves_headroom_and_obeys_the_members_own_limit() -> None:
    room = measure_room_bytes()
    assert 0 < room < psutil.virtual_memory().available
    assert measure_room_bytes(limit_bytes=GIB // 2) == min(room, GIB // 2)


def test_a_group_with_nothing_left_is_no_room(monkeypatch) -> None:
    monkeypatch.setattr("kafila_agent.probe.room.cgroup_rooms", lambda: iter([0]))
    assert measure_room_bytes() == 0
