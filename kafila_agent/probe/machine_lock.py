"""One probe at a time on a machine: two at once would each measure half of it. The lock leaves no file behind."""

from __future__ import annotations

import contextlib
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_NAME = "kafila-probe"
_RETRY_S = 0.05


@contextlib.contextmanager
def machine_lock(patience_s: float = 60.0, name: str = _NAME) -> Iterator[None]:
    """Hold the machine's probe lock. Raises TimeoutError if another holds it for ``patience_s``.

    On Linux it is an abstract Unix socket's name, which the kernel takes back when its holder ends,
    however it ends; elsewhere an advisory lock on a file in the temporary directory.
    """
    take = _bind_abstract_name if sys.platform == "linux" else _lock_file
    deadline = time.monotonic() + patience_s
    while (held := take(name)) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"another probe has held this machine for {patience_s:g} s")
        time.sleep(_RETRY_S)
    with held:
        yield


def _bind_abstract_name(name: str) -> contextlib.AbstractContextManager[object] | None:
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        holder.bind(f"\0{name}")
    except OSError:
        holder.close()
        return None
    return holder


def _lock_file(name: str) -> contextlib.AbstractContextManager[object] | None:
    import fcntl

    file = (Path(tempfile.gettempdir()) / f"{name}.lock").open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file
