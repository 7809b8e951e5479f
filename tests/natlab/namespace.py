"""The laboratory's network namespaces, entered from within a process."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

FILES = Path("/etc/netns")  # `ip netns exec` mounts what lies here over /etc

_CLONE_NEWNS, _CLONE_NEWNET = 0x00020000, 0x40000000
_MS_BIND, _MS_REC, _MS_SLAVE = 0x1000, 0x4000, 0x80000
_libc = ctypes.CDLL(None, use_errno=True)


def enter(namespace: str) -> None:
    """Bring the calling thread, and it alone, into a network namespace. Raises OSError."""
    descriptor = os.open(Path("/run/netns", namespace), os.O_RDONLY)
    try:
        _check("setns", _libc.setns(descriptor, _CLONE_NEWNET))
    finally:
        os.close(descriptor)


def settle(namespace: str) -> None:
    """Make a process of one thread what `ip netns exec` starts: in the namespace, with its files over /etc."""
    enter(namespace)
    _check("unshare", _libc.unshare(_CLONE_NEWNS))
    _mount("none", "/", _MS_REC | _MS_SLAVE)  # nothing of it is seen outside
    for file in (FILES / namespace).iterdir():
        _mount(str(file), f"/etc/{file.name}", _MS_BIND)


def _mount(source: str, target: str, flags: int) -> None:
    _check(
        f"mount {target}", _libc.mount(source.encode(), target.encode(), None, ctypes.c_ulong(flags), None)
    )


def _check(what: str, result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
