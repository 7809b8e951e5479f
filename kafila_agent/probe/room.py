"""Room: bytes this machine can give to weights and KV cache without being exhausted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import torch

# Left for the operating system, the program itself and the activations of a prefill.
_HEADROOM_SHARE = 0.05
_LEAST_HEADROOM_BYTES = 512 << 20
_CGROUP_ROOT = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")


def measure_room_bytes(device: str = "cpu", *, limit_bytes: int | None = None) -> int:
    """Free bytes less a headroom, and no more than ``limit_bytes`` if the member set one. Never negative.

    On a CPU: the least of what is available and what each enclosing control group still allows.
    """
    if torch.device(device).type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
    else:
        memory = psutil.virtual_memory()
        free, total = min([memory.available, *cgroup_rooms()]), memory.total
    headroom = max(_LEAST_HEADROOM_BYTES, int(min(free, total) * _HEADROOM_SHARE))
    room = max(0, free - headroom)
    return room if limit_bytes is None else min(room, limit_bytes)


def cgroup_rooms(root: Path = _CGROUP_ROOT, own: Path = _OWN_CGROUPS) -> Iterator[int]:
    """What each control group that encloses this process still allows (v2, and v1's memory controller).

    Page cache that the kernel can drop (inactive_file) does not count as used.
    """
    for line in _text(own).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            yield from _rooms(root, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield from _rooms(root / "memory", path, *names)


def _rooms(root: Path, path: str, limit_name: str, usage_name: str, cache_key: str) -> Iterator[int]:
    group = root / path.strip("/")
    for place in (group, *group.parents):
        limit, usage = _text(place / limit_name).strip(), _text(place / usage_name).strip()
        if limit.isdigit() and usage.isdigit():
            yield max(0, int(limit) - int(usage) + _statistic(place / "memory.stat", cache_key))
        if place == root:
            return


def _statistic(file: Path, key: str) -> int:
    fields = dict(line.split(" ", 1) for line in _text(file).splitlines() if " " in line)
    return int(fields.get(key, "0"))


def _text(file: Path) -> str:
    """A file's text; a control group without this limit has no such file."""
    try:
        return file.read_text()
    except OSError:
        return ""
