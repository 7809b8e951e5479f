"""The C kernels, compiled for this machine at first use and kept; without a compiler torch does their work."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

import structlog
import torch

log = structlog.get_logger()

_HERE = Path(__file__).parent
_SOURCES, _HEADERS = sorted(_HERE.glob("*.c")), sorted(_HERE.glob("*.h"))
_COMPILE = ("-O3", "-march=native", "-fopenmp", "-fPIC", "-std=gnu11")
_COMPILE_TIMEOUT_S = 60
FLOAT32, BFLOAT16 = 0, 1  # elements, as lanes.h has them
_POINTER, _LONG, _INT = ctypes.c_void_p, ctypes.c_long, ctypes.c_int
_SIGNATURES = {
    "kafila_product": [_POINTER] * 3 + [_LONG] + [_INT] * 2,
    "kafila_attend": [_POINTER] * 4 + [_LONG] * 9 + [ctypes.c_float, _INT],
    "kafila_blocks": [_POINTER] * 2 + [_LONG] + [_POINTER] * 2 + [_LONG] + [_POINTER] * 3 + [_INT],
    "kafila_head": [_POINTER] * 2 + [ctypes.c_float] + [_POINTER] * 2 + [_LONG, _INT],
}


class Matrix(ctypes.Structure):
    """``weights [rows, columns]``: bfloat16 in 16 bits, or packed in 8 or 4; ``bias`` bfloat16, or None."""

    _fields_ = (
        ("weights", _POINTER),
        ("bias", _POINTER),
        ("rows", _LONG),
        ("columns", _LONG),
        ("bits", _INT),
    )


@functools.cache
def native_kernels() -> ctypes.CDLL | None:
    """The compiled kernels, or None (said once in the log) where they cannot be compiled, loaded or trusted.

    Takes about two seconds the first time on a machine, then milliseconds.
    """
    try:
        library = ctypes.CDLL(str(_compiled()))
        for name, arguments in _SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, _INT
        _check(library)
    except (OSError, subprocess.SubprocessError, AttributeError, RuntimeError) as error:
        log.warning("no native kernels: install a C compiler (gcc) to compute faster", reason=str(error))
        return None
    return library


def _compiled() -> Path:
    """The shared object of this source, compiler and processor. Raises OSError or SubprocessError."""
    compiler = shutil.which(os.environ.get("CC") or "cc")
    if compiler is None:
        raise OSError("no C compiler is installed")
    version = subprocess.run(
        [compiler, "--version"], capture_output=True, check=True, timeout=_COMPILE_TIMEOUT_S
    )
    sources = [path.read_bytes() for path in (*_SOURCES, *_HEADERS)]
    kind = b"\0".join([*sources, version.stdout, " ".join(_COMPILE).encode(), _processor()])
    directory = _cache_directory()
    target = directory / f"kernels-{hashlib.sha256(kind).hexdigest()[:24]}.so"
    if target.exists():
        return target
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        linked = Path(scratch) / "kernels.so"
        # Linked without OpenMP's runtime: its symbols are then those of torch, and so are its threads.
        for command in (
            [compiler, *_COMPILE, "-c", *map(str, _SOURCES)],
            [compiler, "-shared", *(path.with_suffix(".o").name for path in _SOURCES), "-o", str(linked)],
        ):
            subprocess.run(command, cwd=scratch, capture_output=True, check=True, timeout=_COMPILE_TIMEOUT_S)
        linked.rename(target)
    return target


def _processor() -> bytes:
    """What ``-march=native`` depends on: a home directory may be shared by unlike machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        flags = platform.processor()
    return f"{platform.machine()} {flags}".encode()


def _cache_directory() -> Path:
    """A directory of this user's alone: systemd's, the user's cache, or one that goes with this process."""
    base = os.environ.get("CACHE_DIRECTORY", "").split(":")[0] or os.environ.get("XDG_CACHE_HOME")
    directory = (Path(base) if base else Path.home() / ".cache") / "kafila"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if directory.stat().st_uid == os.getuid() and os.access(directory, os.W_OK):
            return directory
    except (OSError, RuntimeError):
        pass  # no home, or one that may not be written to
    return _own_directory()


@functools.cache
def _own_directory() -> Path:
    holder = tempfile.TemporaryDirectory(prefix="kafila-kernels-")
    _holders.append(holder)
    return Path(holder.name)


_holders: list[tempfile.TemporaryDirectory[str]] = []


def _check(library: ctypes.CDLL) -> None:
    """Raise RuntimeError unless a small product comes out as torch has it."""
    generator = torch.Generator().manual_seed(1)
    x, w = (torch.randn(n, 64, generator=generator).bfloat16() for n in (2, 21))
    y = torch.empty(2, 21, dtype=torch.bfloat16)
    matrix = Matrix(w.data_ptr(), None, 21, 64, 16)
    failed = library.kafila_product(ctypes.byref(matrix), x.data_ptr(), y.data_ptr(), 2, BFLOAT16, 2)
    expected = x.float() @ w.float().T
    if failed or not torch.allclose(y.float(), expected, rtol=0.01, atol=0.01):
        raise RuntimeError("they computed a product wrongly")
