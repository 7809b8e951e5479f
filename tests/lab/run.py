"""``python -m tests.lab.run [FLEET]``: run the laboratory and keep what was seen as JSON in build/lab.

What has been run already, time as slow as now, is not run again: an interrupted run goes on. Remove build/lab to start
afresh.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.kept import Kept
from tests.lab.fleets import FLEETS, SMALL_ANCHOR, TWO_HOUSES, FleetFacts
from tests.lab.laboratory import Laboratory
from tests.lab.measure import run_patiently
from tests.lab.nat_pairs import run_pairs
from tests.lab.report import write
from tests.lab.trials import Trial, trials_of
from tests.lab.unpaced import run_unpaced
from tests.natlab.lab import why_not

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/lab"
NAT_PAIRS, UNPACED = "nat-pairs", "unpaced"
# Many: how fast a shared machine is changes within a minute, between the probe and the stage.
_UNPACED_SESSIONS = 15
EVERY_FLEET = {**FLEETS, SMALL_ANCHOR.name: SMALL_ANCHOR, TWO_HOUSES.name: TWO_HOUSES}


def run_fleet(fleet: FleetFacts, directory: Path, kept: Kept, is_time_up: Callable[[], bool]) -> bool:
    """Run what is left of a fleet's trials, until time is up; whether all are done."""
    left = [trial for trial in trials_of(fleet) if not _is_kept(kept, trial, fleet)]
    if not left or is_time_up():
        return not left
    with Laboratory(fleet, directory, BUILD / "models") as lab:
        for trial in left:
            if is_time_up():
                return False
            began = time.monotonic()
            kept.add(trial.key, run_patiently(lab, trial))
            print(f"{fleet.name} {trial.key}: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
    return True


def _is_kept(kept: Kept, trial: Trial, fleet: FleetFacts) -> bool:
    return kept.records.get(trial.key, {}).get("time_scale") == fleet.time_scale


def run(name: str, is_time_up: Callable[[], bool]) -> None:
    """Run what is left of one fleet, or of what needs none."""
    with tempfile.TemporaryDirectory(prefix="kafila-lab-") as scratch:
        if name in EVERY_FLEET:
            run_fleet(EVERY_FLEET[name], Path(scratch), Kept(BUILD / f"{name}.json"), is_time_up)
        elif not is_time_up() and not (BUILD / f"{name}.json").exists():
            seen = run_pairs(Path(scratch)) if name == NAT_PAIRS else run_unpaced(_UNPACED_SESSIONS)
            BUILD.mkdir(parents=True, exist_ok=True)
            (BUILD / f"{name}.json").write_text(json.dumps(seen, indent=1))


def main() -> None:
    """Run what was asked for, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = [*EVERY_FLEET, NAT_PAIRS, UNPACED]
    parser.add_argument(
        "fleets", nargs="*", metavar="FLEET", help=f"of {', '.join(names)}; all if none is named"
    )
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing after so long")
    options = parser.parse_args()
    if unknown := set(options.fleets) - set(names):
        parser.error(f"no fleet {', '.join(sorted(unknown))}: there are {', '.join(names)}")
    if reason := why_not():
        parser.exit(1, f"no laboratory on this machine: {reason}\n")
    until = time.monotonic() + options.seconds
    for name in options.fleets or names:
        run(name, lambda: time.monotonic() > until)
    write(BUILD, ROOT / "docs/EVALUATION.md")


if __name__ == "__main__":
    main()
