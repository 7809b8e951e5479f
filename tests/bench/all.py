"""Every bench one after the other, then one table of all rows, kept as build/bench.json too.

    python -m tests.bench.all [BENCH ...] [--seconds 900]

Each goes on where it was: rows are kept in build/BENCH.json, and are measured anew when that is removed. Where a bench
would take long by itself it is asked for a part of its rows here.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any

from tests.bench.rows import BUILD

# The arguments of each, and about how long it takes on two quiet cores.
BENCHES: dict[str, list[str]] = {
    "stage": [],  # 5 minutes
    "stage_cost": [],  # 6
    "batching": [],  # 1
    "quant": [],  # 1
    "memory": [],  # 1
    "hop": ["--rounds", "500"],  # 2
    "ring": [],  # 4
    "relay": [],  # 0.3
    "congestion": ["--loss", "1", "--mib", "0.5"],  # 1
    "planner_growth": ["--members", "2", "8", "16"],  # 1
    "full_ring": ["--delays-ms", "20", "--shares", "0.5", "--tokens", "24"],  # 0.5
    "users": ["--divisions", "planner", "--tokens", "12"],  # 2
    "speculation": ["--delays-ms", "0", "40", "--prompts", "copy", "free text", "--tokens", "48"],  # 3
    "load": [],  # 2
}


def rows_of(name: str) -> dict[str, Any]:
    """What a bench has measured so far, by what it is of."""
    file = BUILD / f"{name}.json"
    return json.loads(file.read_text()) if file.exists() else {}


def lines_of(records: dict[str, Any]) -> list[str]:
    """The printed lines among them."""
    lines = [record if isinstance(record, str) else record.get("row") for record in records.values()]
    return [line for line in lines if line]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "benches", nargs="*", metavar="BENCH", help=f"of {', '.join(BENCHES)}; all if none is named"
    )
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing after so long")
    options = parser.parse_args()
    if unknown := set(options.benches) - set(BENCHES):
        parser.error(f"no bench {', '.join(sorted(unknown))}: there are {', '.join(BENCHES)}")
    until_s = time.monotonic() + options.seconds
    names, failed = options.benches or list(BENCHES), []
    for name in names:
        if (left_s := until_s - time.monotonic()) <= 0:
            break
        print(f"== {name}", flush=True)
        limit = [] if left_s == float("inf") else ["--seconds", f"{left_s:.0f}"]
        command = [sys.executable, "-m", f"tests.bench.{name}", *BENCHES[name], *limit]
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
    table = {name: records for name in names if (records := rows_of(name))}
    (BUILD / "bench.json").write_text(json.dumps(table, indent=1))
    print("\n== all rows")
    for name, records in table.items():
        print(name, *lines_of(records), sep="\n    ")
    if failed:
        parser.exit(1, f"these ended with an error: {', '.join(failed)}\n")


if __name__ == "__main__":
    main()
